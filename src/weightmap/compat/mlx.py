"""Arrays of MLX under the names of ``safetensors.mlx``."""

from weightmap.compat._arrays import Load, LoadFile, Save, SaveFile, functions

__all__ = ["load", "load_file", "save", "save_file"]

load: Load
load_file: LoadFile
save: Save
save_file: SaveFile
load, load_file, save, save_file = functions(__name__, "mlx", "arrays of MLX", "copied by MLX")
