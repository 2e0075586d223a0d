"""Names, keys and tokenizers of llama.cpp, for models of Hugging Face that are written as GGUF.

`translating.as_llama` returns a handle on the same files whose tensors have llama.cpp's names, and whose metadata are
its keys: all else of a conversion is as for any model.

Our decisions
-------------
* Tensors keep their types, except where llama.cpp wants float32: `tensors.stays_float32`.
* A configuration, a tokenizer or a tensor that llama.cpp would refuse, or would compute wrongly with, is an
  `EncodeError` before a file is created. What it says is needed for this: a model that just runs may be wrong.
* ``general.*`` are what the package gguf makes of the folder's name, the model card and ``generation_config.json``:
  see `cards`. What is left out of these and of the tokenizer becomes a warning of the report.
* Files beside the model are read into memory once, with the digest that ``trust=`` lists, and copied nowhere.
"""

from __future__ import annotations

# The program whose names these are: see `Format.program`.
PROGRAM = "llama.cpp"
# What `weightmap.convert` does with names.
NAMES = ("auto", "keep", PROGRAM)


def check_naming(names: str) -> None:
    """Raise ValueError for anything but one of these."""
    if names not in NAMES:
        raise ValueError(f"names is {names!r}, expected one of {', '.join(NAMES)}")
