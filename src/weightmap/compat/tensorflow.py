"""Tensors of TensorFlow under the names of ``safetensors.tensorflow``."""

from weightmap.compat._arrays import functions

__all__ = ["load", "load_file", "save", "save_file"]

load, load_file, save, save_file = functions(__name__, "tf", "tensors of TensorFlow", "copied by TensorFlow")
