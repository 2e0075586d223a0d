"""Names, keys and tokenizers of llama.cpp, for Hugging Face models that are written as GGUF.

`translating.as_llama` returns a handle on the same files whose tensors have llama.cpp's names, and whose metadata are
its keys. The rest of a conversion is the same as for any model.

Our decisions
-------------
* Tensors keep their types, unless llama.cpp wants float32: `tensors.stays_float32`.
* A configuration, a tokenizer or a tensor that llama.cpp would refuse, or would compute wrongly with, raises
  `EncodeError` before a file is created, because a model that merely runs may be wrong.
* ``general.*`` are the fields that the package gguf derives from the folder's name, the model card and
  ``generation_config.json``: see `translating`. Omissions from these and from the tokenizer become warnings in the
  report.
* Files beside the model are read into memory once, under the digest that ``trust=`` lists, and copied nowhere.
"""

from __future__ import annotations

# The program that uses these names: see `Format.program`.
PROGRAM = "llama.cpp"
# The choices for names in `weightmap.convert`.
NAMES = ("auto", "keep", PROGRAM)


def check_naming(names: str) -> None:
    """Raise ValueError unless `names` is one of `NAMES`."""
    if names not in NAMES:
        raise ValueError(f"names is {names!r}, expected one of {', '.join(NAMES)}")
