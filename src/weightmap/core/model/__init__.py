"""Open model files: `TensorFile` and its operations."""
