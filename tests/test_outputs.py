"""No byte of a result is ever what the memory held before: of no kernel, and of no reader, whatever the file becomes.

Results are made twice, in memory that was filled with one value and with another. A byte that nobody wrote differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests import builders, kernel_calls
from tests.kernel_calls import CALLS, Place
from tests.support import DATA

import weightmap as wm
from weightmap.quant.blocks import QuantizedTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FILLS = (0xA5, 0x5A)
# Kernels that leave some of their outputs alone, with what tells the caller how much is there.
IN_PART = {
    "wm_walk_strings": "bounds up to the string that is not there, which the result tells",
    "wm_fifu_ngrams": "bounds and indices up to the n-gram that is not there, which the result tells",
    "wm_index_build": "the first duplicate and its original, if the result tells of any",
    "wm_subword_rows": "row_bounds and rows where these are more than there is room for, which the result tells",
    "wm_pq_decode": "its scratch",
    "wm_columns_place": "columns, which a scan fills",
    "wm_safetensors_scan": "columns beyond the tensors that the result counts",
    "wm_bintensors_scan": "columns beyond the tensors that the result counts",
    "wm_cnn_layers": "columns beyond the tensors that the result counts",
    "wm_amb_walk": "columns beyond the tensors that the result counts",
}
SIZES = (0, 1, 7, 63, 64, 65, 200, 1025, 4097)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", CALLS)
def test_kernels_write_all_of_their_outputs(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whatever outputs held before, a kernel leaves the same there; but those that say how much they have written."""
    told, written = set(), set()
    for size in SIZES:
        found = []
        for fill in FILLS:
            monkeypatch.setattr(kernel_calls, "FILL", fill)
            place = Place(None)
            found.append((CALLS[name](place, size), place.outputs()))
        told.add(found[0][0] == found[1][0])
        written.add(found[0][1] == found[1][1])
    assert told == {True}
    assert (False in written) == (name in IN_PART)


# -------------------------------------------------------------------------------------------------------- readers
MATRIX = np.random.default_rng(3).standard_normal((70, 64)).astype(np.float32)
SCHEMES = ("int8", "int4", "int5", "int4_block", "int5_block", "adaptive")
# What becomes of a file, of which a program holds views, while it is used.
CHANGES: dict[str, Callable[[int], bytes] | None] = {
    "none": None,
    "zeros": bytes,
    "ones": lambda size: b"\xff" * size,
    "noise": lambda size: np.random.default_rng(size).bytes(size),
}
UNKNOWN = ("no such word", "", "q")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files of every format, layout, type and scheme."""
    found = {f"{example.name}{example.suffix}": example.data for example in builders.examples()}
    found |= {path.name: path.read_bytes() for path in sorted((DATA / "finalfusion").glob("*.fifu"))}
    path = tmp_path_factory.mktemp("corpus") / "q.amb"
    wm.save(path, {scheme: wm.quantize(MATRIX, scheme) for scheme in SCHEMES}, durable=False)
    return found | {path.name: path.read_bytes()}


def poisoned(fill: int) -> Callable[..., np.ndarray[Any, Any]]:
    """Return what `numpy.empty` is, with this value in every byte."""
    empty = np.empty

    def filled(*args: Any, **options: Any) -> np.ndarray[Any, Any]:
        array = empty(*args, **options)
        array.reshape(-1).view(np.uint8)[...] = fill
        return array

    return filled


def readings(f: wm.TensorFile) -> Iterator[Callable[[], Any]]:
    """What is made of a file, all of it prepared now and done later."""
    for info in f.infos():
        if info.dtype in {"complex64", "bool"}:
            continue
        yield from (lambda name=info.name, dtype=dtype: f.read(name, dtype) for dtype in ("float32", "float64", ">f2"))  # type: ignore[misc]
        yield lambda info=info: f.read(info.name, out=np.empty(info.shape[::-1], np.float32).T, threads=2)  # type: ignore[misc]
        tensor = f[info.name]
        if isinstance(tensor, QuantizedTensor):
            keys = (slice(1, None), [0, -1], 0, slice(None, None, 3), (slice(None), -1))
            yield from (lambda q=tensor, key=key: q[key] for key in keys)  # type: ignore[misc]
            yield from (lambda q=tensor, t=t: q.dequantize("float16", threads=t) for t in (1, 2))  # type: ignore[misc]
            yield lambda q=tensor: q.flat(1, q.size - 1)  # type: ignore[misc]
            yield lambda q=tensor: (q.kinds, q.scales, q.payload)  # type: ignore[misc]
    if f.vocab is not None:
        words = [*list(f.vocab)[:5], *UNKNOWN]
        embeddings = f.embeddings
        yield lambda: (list(f.vocab), f.vocab.table.find_many(words))
        if embeddings is not None:
            yield lambda: embeddings.batch(words)
            yield from (lambda word=word: embeddings.embedding_with_norm(word) for word in words)  # type: ignore[misc]
            yield lambda: embeddings.most_similar(words[0])


def plain(result: Any) -> Any:
    """A result that can be compared, to the bit."""
    if isinstance(result, (list, tuple)):
        return [plain(item) for item in result]
    return (result.dtype, result.shape, result.tobytes()) if isinstance(result, np.ndarray) else repr(result)


def outcome(reading: Callable[[], Any]) -> Any:
    """What comes of a reading."""
    try:
        return plain(reading())
    except Exception as error:  # noqa: BLE001 - any is as good as another here
        return type(error).__name__, str(error)


@pytest.mark.parametrize("change", CHANGES)
def test_results_hold_nothing_of_what_memory_held(
    monkeypatch: pytest.MonkeyPatch, corpus: dict[str, bytes], change: str
) -> None:
    """Of no file, not even of one that is overwritten while it is open, is a result other in memory that held other."""
    new = CHANGES[change]
    count = 0
    for name, data in corpus.items():
        found = []
        for fill in FILLS:
            memory = bytearray(data)
            with monkeypatch.context() as patch, wm.open(memory) as f, np.errstate(all="ignore"):
                patch.setattr(np, "empty", poisoned(fill))
                prepared = list(readings(f))
                if new is not None:
                    memory[:] = new(len(data))
                found.append([outcome(reading) for reading in prepared])
        assert found[0] == found[1], name
        count += len(found[0])
    assert count > 1000
