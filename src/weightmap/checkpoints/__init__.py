"""Parameters of quantised checkpoints: schemes of several tensors each."""
