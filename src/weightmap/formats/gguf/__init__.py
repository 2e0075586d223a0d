"""GGUF, the format of llama.cpp: ``"GGUF" | u32 version | u64 tensor_count | u64 metadata_kv_count``.

Key-values and tensor infos follow, then zeros up to a multiple of the alignment, then the data section.

Encoding
--------
* Key-value: ``key | u32 value_type | value``. Types: 0 u8, 1 i8, 2 u16, 3 i16, 4 u32, 5 i32, 6 f32, 7 bool (a byte 0
  or 1), 8 string, 9 array, 10 u64, 11 i64, 12 f64. Keys are strings: a u64 length and UTF-8. An array is
  ``u32 type | u64 count | items``; items may be arrays. A key has at most 65,535 bytes and occurs once.
* Tensor info: ``name | u32 n_dimensions (0 to 4) | u64 x n_dimensions | u32 type | u64 offset``. The fastest dimension
  comes first: numpy's shapes are reversed. Offsets count from the beginning of the data section.
* ``general.alignment``, a u32 and a multiple of 8, by default 32, aligns the data section and every offset.
* Tensor types are those of gguf-py, see `TYPES`. A row of a block type consists of whole blocks.
* Version 2 is the same; version 1 has u32 lengths, counts and dimensions. If the low 16 bits of the version are 0, the
  file is big-endian: the bytes of every number behind the magic are swapped.
* ``split.no`` and ``split.count`` number the parts of a model in several files, ``x-00001-of-00003.gguf``. Opening the
  first part opens all; any other part opens alone. `save` and `convert` to shards write these two, u16, and
  ``split.tensors.count``, an i32: the number of tensors in all parts.

Our choices, where the specification is silent or implementations differ
------------------------------------------------------------------------
* Each tensor begins at the first multiple of the alignment after the one before. The header may list tensors in any
  order; iteration follows the order of their data. Padding is zero, which `verify` checks.
* A file ends with its last tensor, or with the padding of that tensor.
* Schemes have the names of types in lower case, such as "q4_k". Nothing decodes Q8_1, Q8_K and Q1_0: they are listed,
  copied to other GGUF files, and returned as bytes.
* Arrays of big-endian files are big-endian. Looking up blocks there, or bfloat16, which has no byte order in numpy,
  raises an `UnsupportedError`.
* Arrays nest at most 64 deep. Strings in arrays are checked for UTF-8 when they are used, and by `verify`; all other
  strings when the file is opened.
* Metadata are plain values; an array of numbers is a read-only ndarray, an array of strings a sequence that decodes on
  use. `convert`, and `save` given ``f.metadata``, its copy or ``f.metadata | {...}``, write values with the types that
  they were read with. New values may be bool, str, int (i32, else i64, else u64), float (f32 if exact, else f64) and
  lists of one of these; numpy's scalars and arrays keep their types. An empty list becomes an array of i32.
* `vocab` reads ``tokenizer.ggml.tokens``, if that is an array of strings; a repeated token has the id of its first
  place. Special ids are ``tokenizer.ggml.{bos,eos,unknown,padding,separator,cls,mask}_token_id`` (also "seperator",
  gguf-py's spelling), under the names bos, eos, unk, pad, sep, cls and mask.
* `save` writes version 3, little-endian, with tensors in the order given; the last one is padded.
"""

from __future__ import annotations

from weightmap import kernels
from weightmap.dtypes import GGML_SCHEMES
from weightmap.formats._base import TYPED, Format
from weightmap.lazy import later

# Codes of types, by the names of dtypes and of schemes. Nothing decodes the opaque ones.
DENSE = {
    "float32": 0,
    "float16": 1,
    "int8": 24,
    "int16": 25,
    "int32": 26,
    "int64": 27,
    "float64": 28,
    "bfloat16": 30,
}
OPAQUE = {"q8_1": 9, "q8_k": 15, "q1_0": 41}
CODES = DENSE | OPAQUE | GGML_SCHEMES
TYPES = {code: name for name, code in CODES.items()}
# Types in blocks: elements and bytes of one.
BLOCKS = {name: kernels.ggml_block(code) for name, code in GGML_SCHEMES.items()}
BLOCKS |= {"q8_1": (32, 40), "q8_k": (256, 292), "q1_0": (128, 18)}
DEFAULT_ALIGNMENT, ALIGNMENT_UNIT = 32, 8
ALIGNMENT = "general.alignment"
TOKENS = "tokenizer.ggml.tokens"
SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
# The keys of each special id, by our names. gguf-py misspells "separator".
SPECIAL_IDS: dict[str, tuple[str, ...]] = {
    "bos": ("tokenizer.ggml.bos_token_id",),
    "eos": ("tokenizer.ggml.eos_token_id",),
    "unk": ("tokenizer.ggml.unknown_token_id",),
    "pad": ("tokenizer.ggml.padding_token_id",),
    "sep": ("tokenizer.ggml.separator_token_id", "tokenizer.ggml.seperator_token_id"),
    "cls": ("tokenizer.ggml.cls_token_id",),
    "mask": ("tokenizer.ggml.mask_token_id",),
}


def aligned(size: int, alignment: int) -> int:
    """Round `size` up to a multiple of the alignment."""
    return -(-size // alignment) * alignment


FORMAT = Format(
    name="gguf",
    title="GGUF",
    suffixes=(".gguf",),
    layouts=("gguf",),
    parse=later(f"{__name__}.reading", "parse"),
    plan=later(f"{__name__}.writing", "plan"),
    carries={"gguf": frozenset({"metadata", "vocab", "special_ids"})},
    dtypes={"gguf": frozenset(DENSE | OPAQUE)},
    schemes={"gguf": frozenset(GGML_SCHEMES)},
    magic=b"GGUF",
    metadata_kinds=TYPED,
    vocab_keys={TOKENS: None, **{key: name for name, keys in SPECIAL_IDS.items() for key in keys}},
    special_ids=frozenset(SPECIAL_IDS),
    aligns={"gguf": 4096},
    numbered=True,
)
