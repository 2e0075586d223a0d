"""The valid files to mutate, by format: the small ones among the golden files and the builders' files."""

import json
from functools import cache

from tests import builders
from tests.attacks import sharded, sound
from tests.attacks.case import INDEX
from tests.checkpoints.checkpoints import EXAMPLES
from tests.support import DATA

# A model in a directory is not a format; its index and its shards are damaged like one.
SHARDED = "sharded"
FORMATS = (*builders.known(), SHARDED)
# Nor is the configuration of a quantised checkpoint, which only guided fuzzing damages: an input is one byte, the
# number of an example, and its config.json.
CHECKPOINT = "checkpoint"
# Using a file takes most of the time, and a small one has the same fields.
LARGEST = 1500


@cache
def small_files():
    """A small file of each format and layout, and one of each part that a format has in several kinds."""
    found = dict(sound())
    for builder in builders.known().values():
        found |= builder.small()
    return found


@cache
def seeds(format):
    if format == SHARDED:
        return (shards()[INDEX],)
    if format == CHECKPOINT:
        return tuple(bytes([n]) + make().settings() for n, make in enumerate(EXAMPLES.values()))
    builder = builders.known()[format]
    found = [data for kind, data in small_files().items() if builders.format_of(kind) is builder]
    found += [example.data for example in builder.examples()]
    golden = sorted((DATA / format).rglob(f"*{builder.suffix}"))
    found += [path.read_bytes() for path in golden if not is_refused(path)]
    return tuple(dict.fromkeys(data for data in found if len(data) <= LARGEST))


def is_refused(path):
    """Whether a golden file has to be refused, according to the list of contents."""
    truth = path.with_name(f"{path.name}.json")
    return truth.exists() and json.loads(truth.read_text(encoding="utf-8")).get("verdict", "accept") != "accept"


@cache
def shards():
    return sharded.folder()
