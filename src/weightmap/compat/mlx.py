"""Arrays of MLX under the names of ``safetensors.mlx``."""

from weightmap.compat._arrays import functions

__all__ = ["load", "load_file", "save", "save_file"]

load, load_file, save, save_file = functions(__name__, "mlx", "arrays of MLX", "copied by MLX")
