"""`check_not_read`: no target is a file that is read, or that belongs to one."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from weightmap.errors import TargetError
from weightmap.model.parts import files_of, name_of, parts_of

__all__ = ["BESIDE", "check_not_read"]

# Files that lie beside a model in its directory, and without which programs cannot run it.
BESIDE = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "preprocessor_config.json",
    "modules.json",
)


def check_not_read(file: Any, *targets: str, itself: bool = False) -> None:
    """Raise `TargetError` if a path leads to a file of this model: itself, an index, a shard, or one of `BESIDE` it.

    With `itself`, a model of one file may be replaced.
    """
    there: dict[str, tuple[int, int]] = {}
    for target in targets:
        _identify(there, target)
    if not there:
        return
    sources = () if itself and not file.shards else (parts_of(file)[0], *(parts_of(part)[0] for part in files_of(file)))
    # Device and inode come first; objects in stores have others.
    inputs = dict.fromkeys((source.identity[:2] for source in sources), "this file is an input")
    beside: dict[str, tuple[int, int]] = {}
    for name in BESIDE:
        _identify(beside, os.path.join(os.path.dirname(name_of(file)), name))
    inputs |= dict.fromkeys(beside.values(), "this file belongs to the source")
    for target, identity in there.items():
        if identity in inputs:
            msg = f"{inputs[identity]}, and would be replaced: choose another target"
            raise TargetError(msg, path=target)


def _identify(found: dict[str, tuple[int, int]], path: str) -> None:
    """Note device and inode of a file, if there is one."""
    with contextlib.suppress(OSError, ValueError):  # writing will say what is wrong with it
        there = os.stat(path)
        found[path] = there.st_dev, there.st_ino
