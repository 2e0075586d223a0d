"""Open model files: `TensorFile`, and what is done with one."""
