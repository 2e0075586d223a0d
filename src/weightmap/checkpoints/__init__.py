"""Parameters of quantised checkpoints, each stored as several tensors."""
