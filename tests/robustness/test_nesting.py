"""Our own bounds of the depth and the keys of texts in files, whatever Python allows."""

import copy
import pickle
import sys
import tomllib
import tracemalloc

import numpy as np
import pytest
from tests.builders import amb, normal
from tests.builders import finalfusion as ff

import weightmap as wm
from weightmap.core.bytes import strict_json
from weightmap.core.formats import finalfusion as toml_parser

DEEPEST = 128


def lists(depth):
    """An object with lists in it, of this depth as a whole."""
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def objects(depth):
    """Objects within each other; a few characters in each make no difference."""
    return b'{"[{": {}, "a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)


def amb_metadata(_, text):
    return wm.open(amb.build(metadata=text)).metadata


def amb_config(_, text):
    return wm.open(amb.build(config=text)).config


def index_of_shards(folder, text):
    index = folder / "model.safetensors.index.json"
    index.write_bytes(b'{"weight_map": {}, ' + text[1:])
    return wm.open(index).metadata


def beside_a_model(name, extra=b"{"):
    def convert(folder, text):
        (folder / "config.json").write_bytes(b"{}")
        (folder / "vocab.txt").write_bytes(b"a\nb\n")
        (folder / name).write_bytes(extra + text[1:])
        wm.save(folder / "model.safetensors", {"w": np.ones(1, np.float32)})
        return wm.convert(folder, folder.parent / "out.amb")

    return convert


PLACES = {
    "metadata of AMB": amb_metadata,
    "configuration of AMB": amb_config,
    "index of shards": index_of_shards,
    "config.json": beside_a_model("config.json"),
    "special_tokens_map.json": beside_a_model("special_tokens_map.json"),
    "tokenizer.json": beside_a_model("tokenizer.json"),
    "tokenizer_config.json": beside_a_model("tokenizer_config.json"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("make", [lists, objects])
def test_json_is_nested_128_deep_at_most(place, make, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    PLACES[place](folder, make(DEEPEST))
    with pytest.raises(wm.FormatError, match="nested more than 128 deep"):
        PLACES[place](folder, make(DEEPEST + 1))


def at_depth(frames, call):
    return call() if not frames else at_depth(frames - 1, call)


READERS = {
    "JSON": lambda: strict_json.loads(lists(100), "x"),
    "TOML": lambda: toml_parser.loads("a = " + "[" * 99 + "]" * 99),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_caller_with_little_stack_left_gets_an_error_of_ours(kind):
    """Near the end of the stack, a text of 100 levels that it has no room for is an error that says so."""
    assert READERS[kind]()
    refused = []
    for frames in range(500, sys.getrecursionlimit(), 10):
        try:
            at_depth(frames, READERS[kind])
        except RecursionError:  # the stack did not even reach this far
            break
        except ValueError as error:
            refused.append(str(error))
    assert refused
    assert all("nested" in message for message in refused)


def nested_amb(path):
    path.write_bytes(amb.build([amb.dense("w", normal((2, 3)))], metadata=lists(DEEPEST), config=objects(DEEPEST)))
    return path


def test_what_is_as_deep_as_it_may_be_is_copied_and_compared(tmp_path):
    with wm.open(nested_amb(tmp_path / "in.amb")) as f:
        for found in (dict(f.metadata), dict(f.config)):
            assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found
            assert repr(found)
        with pickle.loads(pickle.dumps(f)) as twin:
            assert twin.metadata == f.metadata
        assert wm.diff(f, f).equal


WORDS = [ff.simple(["a"]), ff.matrix(normal((1, 1)))]


def toml(text):
    return ff.build([ff.metadata(text), *WORDS])


def many(line, count):
    return b"".join(line % i for i in range(count))


TOO_MUCH = {
    "a key of 40,000 parts": (b"a." * 40_000 + b"a = 1", "deep"),
    "a table of 40,000 parts": (b"[" + b"a." * 40_000 + b"a]", "deep"),
    "tables of 40,000 parts": (b"[[" + b"a." * 40_000 + b"a]]\n", "deep"),
    "a key in quotes of 40,000 parts": (b"""'a'."b\\"c".""" * 20_000 + b"a = 1", "deep"),
    "a key in an inline table": (b"a = {" + b"b." * 40_000 + b"c = 1}", "deep"),
    "a second key in one": (b"a = {b = [1, 2], " + b"b." * 40_000 + b"c = 1}", "deep"),
    "a key behind a string": (b'a = """\n"""""\n' + b"b." * 40_000 + b"c = 1", "deep"),
    "a long key in a long table": (b"[" + b"a." * 99 + b"a]\n" + b"b." * 99 + b"c = 1", "deep"),
    "lists": (b"a = " + b"[" * 50_000, "deep"),
    "inline tables": (b"a = " + b"{a = " * 50_000, "deep"),
    "tables and lists": (b"a = " + b"[{a = " * 50_000, "deep"),
    "100,000 tables": (many(b"[a%d]\n", 100_000), "keys"),
    "100,000 keys": (many(b"a%d = 1\n", 100_000), "keys"),
    "100,000 keys in an inline table": (b"a = {" + many(b"a%d = 1, ", 100_000) + b"b = 1}", "keys"),
    "100,000 inline tables": (b"a = [\n" + b"{a = 1},\n" * 100_000 + b"]", "keys"),
    "dotted keys under a long name": (b"[" + b"h." * 100 + b"h]\n" + many(b"a%d.b = 1\n", 100_000), "keys"),
    "dotted keys of 100 parts": (many(b"a%d" + b".a" * 99 + b" = 1\n", 1000), "keys"),
    "dotted keys of 100 parts in an inline table": (
        b"a = {" + many(b"a%d" + b".a" * 99 + b" = 1, ", 1000) + b"b = 1}",
        "keys",
    ),
    "keys of two parts in an inline table": (b"a = {" + many(b"a%d.b = 1, ", 40_000) + b"b = 1}", "keys"),
    "names of 100 parts": (many(b"[a%d" + b".a" * 99 + b"]\n", 1000), "keys"),
}


@pytest.mark.parametrize("case", TOO_MUCH)
def test_toml_is_bounded_before_it_is_parsed(case):
    """Text that would make the parser keep gibibytes is a FormatError, found in a few times its own memory."""
    text, why = TOO_MUCH[case]
    message = {"deep": "nested more than 128 deep", "keys": "number of keys .* at most 65536"}[why]
    with wm.open(toml(text)) as f:
        for ask in (lambda: f.metadata, f.verify):
            tracemalloc.start()
            try:
                with pytest.raises(wm.LimitError if why == "keys" else wm.FormatError, match=message) as caught:
                    ask()
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert (caught.value.field, caught.value.offset) == ("metadata", 36)
            assert peak < 2**20 + 4 * len(text)


FINE = {
    "dots in numbers": b"a = [\n" + b"  1.5, # one. and = a [half\n" * 70_000 + b"]\nb.c = 2.5\n",
    "signs in strings": b"a = \"%s\"\nb = '%s'\n" % (b"a.b = [{" * 70_000, b"a.b = [{" * 70_000),
    "signs in long strings": b'a = """%s\n"" \\""""\n' % (b"a.b = [{\n" * 70_000)
    + b"b = '''%s\n'' '''''\n" % (b"a.b = [{\n" * 70_000),
    "lists of lists": b"a = [" + b"[[[{b = 1}], 2], 3],\n" * 10_000 + b"]\n",
    "65,536 keys": many(b"[a%d]\nb.c.d = 1\n", 2**14),
    "a key of 128 parts": b"a." * 127 + b"a = 1\nb = 1",
    "128 levels": b"[" + b"a." * 62 + b"a]\n" + b"b." * 63 + b"c = {}\n",
    "names of tables": b"[ 'a.b' . \"c]\" ]\n[[d.e]]\nf = {g = [{}], h.i = 1}\n" + b"# [\n" * 200 + b"[j]",
    "carriage returns": b"a = 1\r\n" * 1 + b"[b]\r\nc.d = [\r\n" + b"[],\r\n" * 200 + b"]\r\n",
    "no end of line": b"[a]\n" * 0 + b"a = [" + b"{}," * 200 + b"]",
}


@pytest.mark.parametrize("case", FINE)
def test_toml_within_the_bounds_is_read(case):
    with wm.open(toml(FINE[case])) as f:
        assert dict(f.metadata) == tomllib.loads(FINE[case].decode())


BAD = {
    "a string without an end": b'a = "' + b"[" * 200,
    "a long string without an end": b'a = """' + b"[" * 200,
    "a literal without an end": b"a = '" + b"[" * 200,
    "a long literal without an end": b"a = '''" + b"[" * 200,
    "brackets that were not opened": b"a = 1\n" + b"]}" * 200 + b"[[[[{" * 26 + b"[" * 30,
    "a value behind a name": b"[a] b = 1\n" + b"[" * 200,
}


@pytest.mark.parametrize("case", BAD)
def test_toml_that_is_none_stays_an_error(case):
    with wm.open(toml(BAD[case])) as f, pytest.raises(wm.FormatError, match="the metadata is not valid TOML"):
        f.metadata  # noqa: B018


def test_toml_with_too_many_keys_is_not_written(tmp_path):
    pytest.importorskip("tomli_w")
    metadata = {f"a{i}": 1 for i in range(2**16 + 1)}
    with pytest.raises(wm.EncodeError, match="number of keys in the metadata"):
        wm.save(tmp_path / "x.fifu", {"embeddings": np.ones((1, 1), np.float32)}, vocab=["a"], metadata=metadata)
