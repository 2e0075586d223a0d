"""GGUF, the files of llama.cpp: ``"GGUF" | u32 version | u64 tensor_count | u64 metadata_kv_count``, key-values, infos.

Zeros up to a multiple of the alignment follow the tensor infos, and then the data section.

Encoding
--------
* Key-value: ``key | u32 value_type | value``. Types: 0 u8, 1 i8, 2 u16, 3 i16, 4 u32, 5 i32, 6 f32, 7 bool (a byte 0
  or 1), 8 string, 9 array, 10 u64, 11 i64, 12 f64. A string, as a key is one, is a u64 length and UTF-8; an array
  ``u32 type | u64 count | items``, of which arrays may be some. A key has at most 65,535 bytes and is there once.
* Tensor info: ``name | u32 n_dimensions (0 to 4) | u64 x n_dimensions | u32 type | u64 offset``. The fastest dimension
  comes first: shapes of numpy are the reversed ones. Offsets count from the beginning of the data section.
* ``general.alignment``, a u32 and a multiple of 8, aligns the data section and every offset; 32 where it is missing.
* Types of tensors: see `TYPES`, the table of gguf-py. A row of a type with blocks consists of whole ones.
* Version 2 is the same; in version 1 lengths, counts and dimensions are u32. A version whose low 16 bits are 0 is that
  of a big-endian file: everything behind the magic has its bytes the other way round.
* ``split.no`` and ``split.count`` number the parts of a model in several files, ``x-00001-of-00003.gguf``. Opening the
  first part opens all; any other opens alone.

Ours, where the specification is silent or its implementations differ
----------------------------------------------------------------------
* Tensors lie one after another, each at the first multiple of the alignment behind the one before. The header may list
  them in any order; the order of a file is that of its data. Their padding is zeros, which `verify` looks at.
* A file ends with its last tensor, or with the padding of that.
* Schemes are called by the names of types in lower case, such as "q4_k". Q8_1, Q8_K and Q1_0, which nothing decodes,
  are listed, copied to other GGUF files, and handed out as bytes.
* Of big-endian files arrays are big-endian. Blocks, and bfloat16, which has no byte order in numpy, are an
  `UnsupportedError` when they are looked up.
* Arrays nest at most 64 deep. Strings in arrays are checked for UTF-8 when they are used, and by `verify`; others when
  the file is opened.
* Metadata are plain values; an array of numbers is a read-only array, an array of strings a sequence that decodes
  when it is used. What was read is written again with the types that it had: by `convert`, and by `save` where it is
  given ``f.metadata``, its copy, or ``f.metadata | {...}``. New values: bool, str, int (i32, else i64, else u64), float
  (f32 if that is exact, else f64), lists of one of these; numpy's scalars and arrays have the types that they have. An
  empty list is an array of i32.
* `vocab` is over ``tokenizer.ggml.tokens``, where that is an array of strings. The first of repeated tokens is found.
  Special ids: ``tokenizer.ggml.{bos,eos,unknown,padding,separator,cls,mask}_token_id`` (and "seperator", as gguf-py
  spells it), called bos, eos, unk, pad, sep, cls and mask.
* Written is version 3, little-endian, tensors in the order in which they are given, the last one padded.
"""

from __future__ import annotations

from weightmap import kernels
from weightmap.dtypes import GGML_SCHEMES
from weightmap.formats._base import Format
from weightmap.formats._metadata import TYPED
from weightmap.lazy import later

# Codes of types, by the names of dtypes and of schemes. Nothing decodes the opaque ones.
_DENSE = {
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
CODES = _DENSE | OPAQUE | GGML_SCHEMES
TYPES = {code: name for name, code in CODES.items()}
DENSE = frozenset(_DENSE)
# Types in blocks: elements and bytes of one.
BLOCKS = {name: kernels.ggml_block(code) for name, code in GGML_SCHEMES.items()}
BLOCKS |= {"q8_1": (32, 40), "q8_k": (256, 292), "q1_0": (128, 18)}
DEFAULT_ALIGNMENT, ALIGNMENT_UNIT = 32, 8
ALIGNMENT = "general.alignment"
TOKENS = "tokenizer.ggml.tokens"
SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
# By our names, where ids of special tokens stand. gguf-py spells "separator" in its own way.
SPECIAL_IDS = {
    "bos": ("tokenizer.ggml.bos_token_id",),
    "eos": ("tokenizer.ggml.eos_token_id",),
    "unk": ("tokenizer.ggml.unknown_token_id",),
    "pad": ("tokenizer.ggml.padding_token_id",),
    "sep": ("tokenizer.ggml.separator_token_id", "tokenizer.ggml.seperator_token_id"),
    "cls": ("tokenizer.ggml.cls_token_id",),
    "mask": ("tokenizer.ggml.mask_token_id",),
}


def aligned(size: int, alignment: int) -> int:
    """Return the first multiple of the alignment from `size` on."""
    return -(-size // alignment) * alignment


FORMAT = Format(
    name="gguf",
    title="GGUF",
    suffixes=(".gguf",),
    layouts=("gguf",),
    parse=later(f"{__name__}.reading", "parse"),
    plan=later(f"{__name__}.writing", "plan"),
    carries={"gguf": frozenset({"metadata", "vocab", "special_ids"})},
    dtypes={"gguf": DENSE | OPAQUE.keys()},
    schemes={"gguf": frozenset(GGML_SCHEMES)},
    magic=b"GGUF",
    metadata_kinds=TYPED,
    vocab_keys={TOKENS: None, **{key: name for name, keys in SPECIAL_IDS.items() for key in keys}},
    special_ids=frozenset(SPECIAL_IDS),
)
