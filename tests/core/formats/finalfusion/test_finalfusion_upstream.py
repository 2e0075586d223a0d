"""finalfusion-python 0.7.1: it reads what this package writes, and on mutants every disagreement has a reason.

It builds with Python 3.11, ``setuptools<70``, ``cython<3`` and ``numpy<2``, in an environment of its own, which
``make finalfusion-test`` makes; the variable ``WEIGHTMAP_FINALFUSION`` names its interpreter.
"""

import json
import os
import re
import subprocess
from collections import Counter

import numpy as np
import pytest
from tests.builders import finalfusion as ff
from tests.builders import normal
from tests.fifu_support import Parts, Words, explicit
from tests.fuzz.mutate import mutant

import weightmap as wm
from weightmap.core.quant.product import ProductQuantized

OTHER = os.environ.get("WEIGHTMAP_FINALFUSION")
pytestmark = pytest.mark.skipif(OTHER is None, reason="WEIGHTMAP_FINALFUSION names no interpreter")

READ = """
import json, sys
import finalfusion
out = []
for path in sys.argv[1:]:
    e = finalfusion.load_finalfusion(path)
    indexer = getattr(e.vocab, "subword_indexer", None)
    out.append({
        "words": list(e.vocab.words),
        "rows": [[float(x) for x in e.storage[i]] for i in range(e.storage.shape[0])],
        "norms": None if e.norms is None else [float(x) for x in e.norms],
        "metadata": None if e.metadata is None else dict(e.metadata),
        "ngrams": sorted(indexer.ngram_index.items()) if hasattr(indexer, "ngram_index") else None,
        "found": [[float(x) for x in e.embedding(word, default=0)] for word in e.vocab.words],
    })
print(json.dumps(out))
"""


def read_elsewhere(paths):
    done = subprocess.run([str(OTHER), "-c", READ, *map(str, paths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


VOCABS = {
    "simple": (Words(ff.WORDS), 0),
    "bucket": (Words(ff.WORDS, Parts("bucket", 3, 6, 16)), 16),
    "fasttext": (Words(ff.WORDS, Parts("fasttext", 1, 2, 5)), 5),
    "explicit": (explicit(ff.WORDS, [("<on", 2), ("one", 0), ("ne>", 1), ("<tw", 0)], 2, 3), 3),
}


@pytest.mark.parametrize("kind", VOCABS)
def test_finalfusion_python_reads_our_files(kind, tmp_path):
    vocab, more = VOCABS[kind]
    rows = len(ff.WORDS) + more
    codes, books, rotation, lengths = ff.quantised(rows, 3, 7, 2)
    matrices = [normal((rows, 4), 1).array]
    matrices += [ProductQuantized(codes, books, p, n) for p in (None, rotation) for n in (None, lengths)]
    norms = ff.lengths(len(ff.WORDS)).array
    paths, written = [], []
    for i, matrix in enumerate(matrices):
        for extras in (0, 1, 2, 3):
            tensors = {"embeddings": matrix} | ({"norms": norms} if extras & 1 else {})
            path = tmp_path / f"{i}-{extras}.fifu"
            wm.save(path, tensors, vocab=vocab, metadata=ff.PARSED if extras & 2 else None)
            paths.append(path)
            written.append((matrix, extras))
    for (matrix, extras), found in zip(written, read_elsewhere(paths), strict=True):
        assert found["words"] == list(ff.WORDS)
        expected = matrix.dequantize() if isinstance(matrix, ProductQuantized) else matrix
        np.testing.assert_allclose(found["rows"], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found["found"], expected[: len(ff.WORDS)], rtol=1e-5, atol=1e-5)
        assert (found["norms"] is None) == (not extras & 1)
        if extras & 1:
            np.testing.assert_array_equal(np.array(found["norms"], np.float32), norms)
        assert found["metadata"] == (ff.PARSED if extras & 2 else None)
        if kind == "explicit":
            assert [tuple(pair) for pair in found["ngrams"]] == [("<on", 2), ("<tw", 0), ("ne>", 1), ("one", 0)]


COUNT = 12_000

# Reads every file that standard input names, and prints its content, or the exception that it ended with.
TRY = """
import json, resource, signal, sys
import finalfusion
import numpy as np
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
def late(*_):
    raise TimeoutError
signal.signal(signal.SIGPROF, late)
for path in sys.stdin.read().split():
    signal.setitimer(signal.ITIMER_PROF, 2)
    try:
        e = finalfusion.load_finalfusion(path)
        rows = [np.asarray(e.storage[i], np.float32) for i in range(e.storage.shape[0])]
        found = {
            "words": list(e.vocab.words),
            "shape": list(e.storage.shape),
            "rows": b"".join(row.tobytes() for row in rows).hex(),
            "norms": None if e.norms is None else np.asarray(e.norms, np.float32).tobytes().hex(),
        }
    except BaseException as error:
        found = f"{type(error).__name__}: {error}"
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps(found), flush=True)
"""

# Files that weightmap reads and the reference refuses, by the reference's message.
LACKS = {
    r"not a valid TypeId|Invalid Type, expected": "the reference reads float32, and codes of uint8, and nothing else",
    r"Expected vocab chunk, not [26]": "the reference reads no matrix or norms without words",
    r"could not read chunk header": "the reference reads no metadata alone",
    r"not a valid ChunkIdentifier|Could not read <0I": "the reference believes the list of chunks in the header",
    r"TomlDecodeError": "the reference reads TOML of an older version",
    r"cannot reshape|equal to number of norms|Could not read \d+ bytes": (
        "the reference takes padding to be as long as it would write it"
    ),
}
SPECIFICATION = "the reference does not know the order of fields of the specification"
# Files that the reference reads and weightmap refuses, by weightmap's message.
LENIENT = {
    r"there are trailing bytes|chunk id is": "the reference does not look behind the last chunk it knows",
    r"(projection|norms) of the quantised matrix": "the reference takes any number but 0 for true",
    r"number of norms": "the reference has norms for more rows than there are words",
    r"padding before the data is not zero": "the reference does not look at padding",
    r"is not valid TOML": "the reference reads TOML that is none, such as with control characters",
    r"is a second": "the reference leaves a chunk that comes twice",
    r"length of the|the file ends within": "the reference believes no length of a chunk",
}


def tried_elsewhere(paths):
    """The content that finalfusion-python finds in each file, or its exception's text; a file may kill the process."""
    found = []
    while len(found) < len(paths):
        names = "\n".join(map(str, paths[len(found) :]))
        done = subprocess.run([str(OTHER), "-c", TRY], input=names, capture_output=True, text=True, check=False)
        found += map(json.loads, done.stdout.splitlines())
        if len(found) < len(paths):
            found.append(f"it died with status {done.returncode}")
    return found


def ours(data):
    """The content that weightmap finds in a file, or the text of its error."""
    try:
        with wm.open(memoryview(data), format="finalfusion", verify="full") as f, np.errstate(all="ignore"):
            dict(f.metadata)
            return {
                "layout": f.layout,
                "words": None if f.vocab is None else list(f.vocab),
                "rows": f.read("embeddings") if "embeddings" in f else None,
                "exact": "embeddings" in f and f.info("embeddings").dtype != "pq",
                "norms": f["norms"].astype(np.float32).tobytes().hex() if "norms" in f else None,
            }
    except wm.TensorFileError as error:
        return str(error)


def same(mine, other):
    """Whether both found the same: decoded values up to the order of sums, all else to the bit."""
    if (mine["words"], mine["norms"], list(mine["rows"].shape)) != (other["words"], other["norms"], other["shape"]):
        return False
    rows = np.frombuffer(bytes.fromhex(other["rows"]), np.float32).reshape(other["shape"])
    if mine["exact"]:
        return rows.tobytes() == mine["rows"].tobytes()
    return np.allclose(rows, mine["rows"], rtol=1e-4, atol=1e-4, equal_nan=True)


def reason(mine, other):
    """Why the two disagree about a file; empty when there is no reason."""
    if isinstance(mine, str):
        return next((why for said, why in LENIENT.items() if re.search(said, mine)), "")
    if mine["layout"] == "spec":
        return SPECIFICATION
    return next((why for said, why in LACKS.items() if re.search(said, str(other))), "")


def test_every_disagreement_has_a_reason(tmp_path):
    # Mutants with newer TOML than the reference's are rare.
    newer = ff.build([ff.metadata('a = [1, "x"]'), ff.simple(["a"]), ff.matrix(normal((1, 2)))])
    files = [newer, *(mutant("finalfusion", number).files[""] for number in range(COUNT))]
    paths = [tmp_path / str(number) for number in range(len(files))]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    agreements = Counter()
    reasons = Counter()
    for data, other in zip(files, tried_elsewhere(paths), strict=True):
        mine = ours(data)
        if isinstance(mine, str) and isinstance(other, str):
            agreements["refused"] += 1
        elif isinstance(mine, dict) and isinstance(other, dict) and same(mine, other):
            agreements["read"] += 1
        else:
            why = reason(mine, other)
            assert why, f"{data.hex()}: weightmap {mine}, finalfusion-python {other}"
            reasons[why] += 1
    assert min(agreements.values()) > COUNT / 20
    assert set(reasons) == {SPECIFICATION, *LACKS.values(), *LENIENT.values()}
