"""Names, shapes and places of tensors. Every range that a file declares is validated here and nowhere else."""
