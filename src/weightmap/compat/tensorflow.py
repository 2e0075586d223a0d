"""Tensors of TensorFlow under the names of ``safetensors.tensorflow``."""

from weightmap.compat._arrays import Load, LoadFile, Save, SaveFile, functions

__all__ = ["load", "load_file", "save", "save_file"]

load: Load
load_file: LoadFile
save: Save
save_file: SaveFile
load, load_file, save, save_file = functions(__name__, "tf", "tensors of TensorFlow", "copied by TensorFlow")
