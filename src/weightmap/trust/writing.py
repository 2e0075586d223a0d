"""Writes ``SHA256SUMS`` beside what `save` and `convert` made, as sha256sum does."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from weightmap.io import strict_json
from weightmap.io.atomic import write_plan
from weightmap.io.sink import WritePlan
from weightmap.trust.lists import Digest, of_sums
from weightmap.trust.recorded import SUMS, read_list

_INDEX = ".index.json"
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})


def write_sums(path: str) -> None:
    """Write the digests of a model: of all files in a directory, of a file, or of an index and its shards.

    The list lies in the folder of the model. One that is there already keeps its lines about other files. Files whose
    names begin with a dot, and other lists, are left out.
    """
    given = os.path.abspath(path)
    folder, own = (given, "") if os.path.isdir(given) else os.path.split(given)
    if not own:
        names = [os.path.relpath(at, folder) for at in _files(folder)]
    elif os.path.isfile(given) and not own.endswith(_INDEX):
        names = [own]
    else:
        index = own if own.endswith(_INDEX) else f"{own}{_INDEX}"
        listing = strict_json.loads(Path(folder, index).read_bytes(), index)
        names = sorted({index, *map(str, listing["weight_map"].values())})
    target = os.path.join(folder, SUMS)
    raw = read_list(target) if own else None
    digests = {} if raw is None else of_sums(raw, target)
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        key = name.replace(os.sep, "/")
        digests[key] = (Digest("sha256", found, target),)
    content = os.fsencode("".join(_line(name, digest.value) for name, (digest,) in sorted(digests.items())))
    write_plan(target, WritePlan(len(content), lambda sink: sink.write(content)))


def _line(name: str, digest: str) -> str:
    escaped = name.translate(_ESCAPES)
    return f"{'' if escaped == name else chr(92)}{digest}  {escaped}\n"


def _files(folder: str) -> list[str]:
    found = []
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [os.path.join(at, name) for name in names if not name.startswith(".") and name != SUMS]
        found += [path for path in paths if stat.S_ISREG(os.stat(path).st_mode)]
    return found
