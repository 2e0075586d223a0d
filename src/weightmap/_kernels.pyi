# The compiled module as cffi makes it; csrc/kernels.h tells what `lib` holds.
from typing import Any

ffi: Any
lib: Any

def widen(kind: int, a: object, out: object, threads: int) -> bool: ...
def decode(
    data: object,
    n: int,
    bits: int,
    block_size: int,
    scale_type: str,
    start: int,
    stop: int,
    out: object,
    threads: int,
    places: object = ...,
) -> bool: ...
def pack_texts(words: object, before: str, after: str, bounds: object) -> bytes | None: ...
