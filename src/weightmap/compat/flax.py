"""Arrays of jax under the names of ``safetensors.flax``."""

from weightmap.compat._arrays import Load, LoadFile, Save, SaveFile, functions

__all__ = ["load", "load_file", "save", "save_file"]

load: Load
load_file: LoadFile
save: Save
save_file: SaveFile
load, load_file, save, save_file = functions(
    __name__, "jax", "arrays of jax", "shared with the mapping where they begin at a multiple of 64 bytes"
)
