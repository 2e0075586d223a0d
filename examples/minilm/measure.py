"""The cost of opening a model, measured in a fresh process so that no library profits from another.

`measure_in_child` starts a process that runs `measure` first. Both routes open the file, get every tensor, build the
tokeniser and embed one sentence with the same numpy code, so they differ only in the loader.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import weightmap
from minilm.model_parts import model_parts
from minilm.sentences import SentenceEncoder, build_tokenizer
from weightmap.errors import TensorFileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightmap.core.quant.blocks import QuantizedTensor

    Tensors = dict[str, NDArray[np.float32] | QuantizedTensor]

OPENS = 50  # repetitions behind the median

# The smallest vocabulary for a tokeniser.
_WORDS = ("pad", "unk", "cls", "sep", "mask")

# The EMBD metadata keys that the encoder reads, and where a Hugging Face config.json has them.
_CONFIG_KEYS = {
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "max_position_emb": "max_position_embeddings",
    "layer_norm_eps": "layer_norm_eps",
    "hidden_act": "hidden_act",
}

# The program of a child. It takes the parent's search path, so that both import the same weightmap; until then, -P
# keeps the working directory out of the path.
_CHILD = """
import json, sys
request = json.load(sys.stdin)
sys.path[:] = request.pop("search_path")
from minilm.measure import measure
json.dump(measure(**request)._asdict(), sys.stdout)
"""


class _Weightmap:
    """The route through weightmap: views of the mapped file, quantised or not, and its vocabulary."""

    def __init__(self, path: str) -> None:
        self._path = path

    def open(self) -> Any:
        return weightmap.open(self._path)

    def tensors(self, handle: Any) -> Tensors:
        return {name: handle[name] for name in handle}

    def encoder(self, handle: Any, tensors: Tensors) -> SentenceEncoder:
        return SentenceEncoder(tensors, *model_parts(handle))


class _Safetensors:
    """The route through safetensors: an array for each tensor, the vocabulary from the text file beside it."""

    def __init__(self, path: str, checkpoint: Path) -> None:
        from safetensors import safe_open

        self._path, self._checkpoint = path, checkpoint
        self._safe_open = safe_open

    def open(self) -> Any:
        return self._safe_open(self._path, framework="np")

    def tensors(self, handle: Any) -> Tensors:
        return {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 - no mapping

    def encoder(self, handle: Any, tensors: Tensors) -> SentenceEncoder:  # noqa: ARG002 - as the other one
        config = json.loads((self._checkpoint / "config.json").read_text("utf-8"))
        metadata = {ours: str(config[theirs]) for ours, theirs in _CONFIG_KEYS.items() if theirs in config}
        vocab = (self._checkpoint / "vocab.txt").read_text("utf-8").removesuffix("\n").split("\n")
        special_ids = {role: vocab.index(f"[{role.upper()}]") for role in _WORDS}
        return SentenceEncoder(tensors, metadata, vocab, special_ids)


class Measurement(NamedTuple):
    """The outcome for one loader. Times are seconds from the start of the first opening; memory is bytes."""

    open_first: float  # from a path to a handle whose header and index are checked: the first time in the process
    open_median: float  # the same, the median of many more at the end
    tensors: float  # until every tensor is a numpy array or a QuantizedTensor
    embedding: float  # until the first sentence's embedding, including the building of the tokeniser
    memory_before: int | None  # anonymous memory of the process before opening; None where the system does not tell
    memory_tensors: int | None  # the same with every tensor
    memory_embedding: int | None  # the same with the embedding
    vector: list[float]  # the embedding, to compare the routes


def anonymous_memory() -> int | None:
    """Return the bytes of this process's memory that no file backs; None where ``/proc`` does not tell.

    Copies of tensors would add to it. Pages of a mapped file do not count: the system can drop them at any time and
    shares them between processes.
    """
    for name, field in (("smaps_rollup", "Anonymous:"), ("status", "RssAnon:")):
        try:
            lines = (Path("/proc/self") / name).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return None


def measure(route: str, path: str, checkpoint: str, sentence: str) -> Measurement:
    """Open a model, get all of its tensors, embed a sentence; measure time and memory.

    Parameters
    ----------
    route : {"weightmap", "safetensors"}
        The library that opens the file.
    path : str
        A file of any format with a vocabulary, or the original ``.safetensors``.
    checkpoint : str
        For "safetensors", the directory with ``config.json`` and ``vocab.txt``; otherwise unused.
    sentence : str
        The sentence to embed.

    Returns
    -------
    Measurement
    """
    loader = _Weightmap(path) if route == "weightmap" else _Safetensors(path, Path(checkpoint))
    # Imports and the buffers of BLAS, which its first product makes, do not count as opening.
    np.ones((64, 384), np.float32) @ np.ones((384, 1536), np.float32)
    build_tokenizer(list(_WORDS), {word: number for number, word in enumerate(_WORDS)}, max_length=8)
    before = anonymous_memory()

    start = time.perf_counter()
    handle = loader.open()
    opened = time.perf_counter()
    tensors = loader.tensors(handle)
    fetched = time.perf_counter()
    with_tensors = anonymous_memory()
    resumed = time.perf_counter()
    vector = loader.encoder(handle, tensors).embed([sentence])[0]
    embedded = time.perf_counter()
    with_embedding = anonymous_memory()

    opens = []
    for _ in range(OPENS):
        again = time.perf_counter()
        with loader.open():
            opens.append(time.perf_counter() - again)
    return Measurement(
        opened - start,
        statistics.median(opens),
        fetched - start,
        fetched - start + embedded - resumed,  # without the reading of /proc in between
        before,
        with_tensors,
        with_embedding,
        vector.tolist(),
    )


def measure_in_child(route: str, path: str, checkpoint: str, sentence: str) -> Measurement:
    """Run `measure` in a new Python process and return its result.

    Raises
    ------
    TensorFileError
        When that process fails, with the last line of its output.
    """
    request = {"route": route, "path": path, "checkpoint": checkpoint, "sentence": sentence, "search_path": sys.path}
    # One thread: on a busy machine, BLAS threads wait for each other far longer than a short sentence takes.
    environment = os.environ | dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(  # noqa: S603 - this interpreter, this program
        [sys.executable, "-P", "-c", _CHILD],
        input=json.dumps(request),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise TensorFileError(f"measuring {route} failed: {said[-1]}", path=path)
    return Measurement(**json.loads(done.stdout))
