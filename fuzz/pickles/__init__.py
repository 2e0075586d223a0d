"""Random pickle programs, opened beside torch.load: `make torch-test`."""
