"""`check_not_read`: a target is neither a source file nor belongs to one."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from weightmap.core.model.internals import sources_of
from weightmap.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weightmap.core.bytes.source import Source

# Files that programs read beside a model in a directory of Hugging Face, and its terms: they go along to a new one, and
# no target replaces them.
ALONG = (
    "config.json",
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "dict.txt",
    "bpe.codes",
    "tokenizer.model",
    "tiktoken.model",
    "sentencepiece.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "source.spm",
    "target.spm",
    "target_vocab.json",
    "tekken.json",
    "normalizer.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
    "NOTICE.txt",
    "USE_POLICY.md",
)


def check_not_read(file: Any, *targets: str) -> None:
    """Raise `TargetError` if a path names a file of a model, a shard, or one of `ALONG` beside it."""
    check_apart(sources_of(file), targets, ALONG)


def check_apart(sources: Sequence[Source], targets: Iterable[str], beside: Iterable[str] = ()) -> None:
    """Raise `TargetError` if a path leads to a source file, or to one of those `beside` the first."""
    there = _identities(targets)
    if not there:
        return
    # Device and inode come first; objects in stores have others.
    inputs = dict.fromkeys((source.identity[:2] for source in sources), "this file is an input")
    folder = os.path.dirname(sources[0].name)
    others = _identities([os.path.join(folder, name) for name in beside])
    inputs |= dict.fromkeys(others.values(), "this file belongs to the source")
    for target, identity in there.items():
        if identity in inputs:
            msg = f"{inputs[identity]}, and would be replaced: choose another target"
            raise TargetError(msg, path=target)


def _identities(paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return device and inode of each of these files that exists."""
    identities = {}
    for path in paths:
        with contextlib.suppress(OSError, ValueError):  # writing will say what is wrong with it
            status = os.stat(path)
            identities[path] = status.st_dev, status.st_ino
    return identities
