"""Everything from a file reaches a terminal as text: every command, every place where a file has strings."""

import ast
import json
import unicodedata

import numpy as np
import pytest
from tests.builders import embd, normal
from tests.builders import safetensors as st
from tests.cli.test_cli import NASTY, on_terminal

import weightmap as wm
from weightmap import cli
from weightmap._messages import escape

TEXTS = {
    **NASTY,
    "title": "\x1b]0;new title\x07",
    "paste": "\x1b[200~rm -rf ~\n\x1b[201~",
    "device": "\x1bP+q544e\x1b\\",
    "backspaces": "safe\b\b\b\bevil",
    "carriage return": "evil\rsafe",
    "vertical": "a\x0bb\x0cc",
    "nul": "a\0b",
    "next line": "a\x85b",
    "separators": "a\u2028b\u2029c",
    "isolates": "\u2067right\u2069",
    "mark": "\u200fa\u061cb",
    "zero width": "we\u200bight\ufeff",
    "soft hyphen": "we\xadight",
    "deprecated": "a\u206ab\u206fc",
    "annotation": "a\ufff9b\ufffac\ufffb",
    "tags": "a\U000e0001\U000e0041\U000e007fb",
    "fillers": "a\u3164\u115f\uffa0b",
    "variants": "a\ufe0fb\u034fc\U000e0100d\u180be",
    "notes": "a\U0001d173b\u180ec\U00013430d",
    "everything": "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)])),
}
# Controls, format characters, surrogates and separators of Unicode, and its other ignorable characters.
KINDS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
IGNORABLE = {0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2065, 0x3164, *range(0xFE00, 0xFE10)}
IGNORABLE |= {0xFFA0, *range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE1000)}
FORBIDDEN = {chr(c) for c in range(0x110000) if c in IGNORABLE or unicodedata.category(chr(c)) in KINDS}


def test_hidden_characters_are_escaped():
    """Every character that Unicode calls a control, of format, a separator of lines or ignorable is spelt out."""
    for char in sorted(FORBIDDEN):
        shown = escape(f"a{char}b")
        assert shown.isascii()
        assert ast.literal_eval(f"'{shown}'") == f"a{char}b"


VISIBLE = ("plain", "with space", "é ü", "重み", "سلام", "हिन्दी", "a\u00a0b", "😀", "back\\slash", "'\"")


@pytest.mark.parametrize("text", VISIBLE)
def test_visible_characters_stay(text):
    assert escape(text) == text


def harmless(text, lines=None):
    """Whether it has only printable characters and the expected number of newlines."""
    return not (FORBIDDEN - {"\n"}) & set(text) and (lines is None or text.count("\n") == lines)


class Corpus:
    """Files that have one text wherever a file may have a text, and a directory of that name."""

    def __init__(self, folder, text):
        self.text = text
        # A path may have anything but NUL and the slash.
        self.folder = folder / text.replace("\0", "").replace("/", "")[:80]
        self.folder.mkdir()
        values = {text: normal((3, 2)), "plain": normal((3, 2), 1)}
        words = [text, "word", "[UNK]"]
        self.paths = {name: self.folder / f"{name}{text.replace(chr(0), '').replace('/', '')[:40]}" for name in "abewd"}
        self.write("a", st.build(values, {text: text, "k": text}))
        self.write("b", st.build({text: normal((3, 2), 7), "other" + text: normal((2,))}, {text: "else" + text}))
        self.write("e", embd.Draft([("m", normal((3, 2)))], metadata={text: text}, vocab=words).seal())
        self.write("w", embd.Draft([("m", normal((3, 2)))], vocab=["other" + text, "word", "[UNK]"]).seal())
        self.write("d", st.build(values, {text: text})[:-1])

    def write(self, name, data):
        self.paths[name].write_bytes(data)

    def commands(self):
        a, b, e, w, d = (str(self.paths[name]) for name in "abewd")
        out, text = str(self.folder / "out"), self.text.replace("\0", "")
        looks = [
            *(["inspect", path] for path in (a, e, d, str(self.folder), str(self.folder / "missing"))),
            ["verify", "-v", a, e, d, str(self.folder / "missing")],
            *(
                [*what.split(), path]
                for what in ("doctor", "cache show", "cache warm", "cache evict")
                for path in (a, e)
            ),
            ["cache", "show", a, text],
            ["cache", "warm", d],
            ["diff", a, b],
            ["diff", e, w],
            ["words", "lookup", e, text, "missing" + text],
            ["words", "similar", e, self.text],
            ["words", "analogy", e, self.text, "word", "missing" + text],
            [self.text],
            ["inspect", a, self.text, "--" + self.text],
            ["words", "similar", e, "word", "-k", self.text],
            ["quantize", a, out + ".amb", "--scheme", self.text],
            ["convert", a, out + ".safetensors", "--format", self.text],
            ["convert", a, out + ".safetensors", "--layout", self.text],
            ["convert", a, out + ".safetensors", "--dtype", self.text],
        ]
        return [
            *looks,
            *([*command, "--json"] for command in looks),
            ["export", a, self.text, out + ".npy"],
            ["export", a, "missing" + self.text, out + ".npy"],
            ["convert", a, out + ".weights"],
            ["convert", a, out + ".bin"],
            ["convert", e, out + ".safetensors"],
            ["convert", a, out + ".safetensors", "--include", self.text, "--json"],
            ["convert", d, out + ".amb"],
            ["quantize", a, out + ".amb", "--scheme", "int8", "--include", "*"],
            ["quantize", a, out + ".amb", "--scheme", "int8", "--json"],
            ["inspect", out + ".amb"],
        ]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_control_character_of_a_file_reaches_a_terminal(text, tmp_path, capsys):
    """Names, metadata, words, paths and arguments with escape sequences, through every command, in text and JSON."""
    corpus = Corpus(tmp_path, text)
    statuses = set()
    for command in corpus.commands():
        statuses.add(cli.main(command))
        out, err = capsys.readouterr()
        assert harmless(out), (command, out)
        assert harmless(err), (command, err)
        assert "Traceback" not in err
        if "--json" in command and out:
            json.loads(out)
            assert out.isascii()
    assert statuses >= {0, 1, 3, 4}


@pytest.mark.parametrize(
    "text",
    [
        "escape",
        "markup",
        *(pytest.param(text, marks=pytest.mark.slow) for text in ("link", "reversed", "carriage return")),
    ],
)
def test_a_terminal_gets_the_text_spelt_out(text, tmp_path):
    pytest.importorskip("rich")
    corpus = Corpus(tmp_path, TEXTS[text])
    paths = {name: str(path) for name, path in corpus.paths.items()}
    shown = escape(TEXTS[text])
    for command in (["inspect", paths["a"]], ["diff", paths["a"], paths["b"]], ["inspect", paths["e"]]):
        status, sent = on_terminal(*command)
        assert status in {0, 1}
        assert TEXTS[text] not in sent.replace("\r\n", "\n") or shown == TEXTS[text]
        assert shown[:20] in sent, sent


def test_errors_and_handles_escape_hidden_characters(tmp_path):
    for text in TEXTS.values():
        data = st.build({text: normal((3, 2))}, {text: text})
        path = tmp_path / text.replace("\0", "").replace("/", "")
        path.write_bytes(data)
        with wm.open(path) as f:
            wrong = (
                lambda f=f, text=text: f["missing" + text],
                lambda data=data: wm.open(memoryview(data[:-1])),
                lambda text=text: wm.save("x.bin", {text: np.ones(2, np.float32)}),
                lambda text=text: wm.open(memoryview(embd.Draft([(text, normal((2,)))]).seal()[:-20])),
            )
            for call in wrong:
                with pytest.raises(wm.TensorFileError) as caught:
                    call()
                assert harmless(str(caught.value), 0)
            assert harmless(repr(f), 0)
            assert all(str(info).isprintable() for info in f.infos())
