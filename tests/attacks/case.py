"""An attack: a file with one lie in it, and the required error of opening it."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests import builders

U16, U32, U63, U64 = 2**16 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Case:
    row: str
    kind: str
    name: str
    data: bytes | Mapping[str, bytes]
    error: str = ""
    field: str | None = None
    offset: int | None = None
    late: bool = False
    odd: str | None = None
    size: int | None = None
    says: str = ""

    @property
    def id(self):
        return f"{self.row}-{self.kind}-{self.name}".replace(" ", "-")

    @property
    def format(self):
        builder = builders.format_of(self.kind)
        return None if builder is None else builder.format

    @property
    def file(self):
        builder = builders.format_of(self.kind)
        return f"{self.id}{'.bin' if builder is None else builder.suffix}"

    def write(self, folder):
        target = folder / self.file
        if isinstance(self.data, bytes):
            target.write_bytes(self.data)
            if self.size is not None:
                with target.open("r+b") as file:
                    file.truncate(self.size)
            return target
        target.mkdir(exist_ok=True)
        for name, data in self.data.items():
            (target / name).write_bytes(data)
        return target / INDEX


def put(data, at, new):
    return data[:at] + new + data[at + len(new) :]


# Texts that are not strict JSON objects, for headers of safetensors and sections of AMB.
BAD_JSON = {
    "not UTF-8": b'{"a": "\xff"}',
    "overlong UTF-8": b'{"a": "\xc0\xaf"}',
    "surrogate in UTF-8": b'{"a": "\xed\xa0\x80"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "cut off": b'{"a": ',
    "repeated key": b'{"a": 1, "a": 2}',
    "repeated key within": b'{"b": {"a": 1, "a": 2}}',
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "1e999": b'{"a": 1e999}',
    "5000 digits": b'{"a": ' + b"1" * 5000 + b"}",
    "lone surrogate": b'{"a": "\\ud800"}',
    "root a list": b"[1]",
    "root a number": b"1",
    "root null": b"null",
    "spaces": b"   ",
    "deep lists": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep and cut off": b'{"a":' + b"[" * 100_000,
    "something behind": b"{} x",
    "raw control character": b'{"a\nb": 1}',
    "trailing comma": b'{"a": 1,}',
    "comment": b"{/* */}",
}

# Bytes that are not UTF-8: invalid, overlong, a surrogate, beyond the last character, cut off.
BAD_UTF8 = {
    "ff": b"\xff",
    "overlong": b"\xc0\xaf",
    "overlong NUL": b"\xc0\x80",
    "surrogate": b"\xed\xa0\x80",
    "beyond the last": b"\xf4\x90\x80\x80",
    "cut off": b"abc\xe2\x82",
}
# Legal names that nobody would like to see raw.
WILD_NAMES = {
    "NUL": "a\0b",
    "escape sequence": "\x1b]0;owned\x07\x1b[31m",
    "bidirectional override": "\u202egnp.exe",
    "byte order mark": "\ufeffa",
    "parent directory": "../../etc/passwd",
    "absolute path": "/etc/passwd",
    "markup": "[red]a[/red]",
    "newline": "a\nb",
    "60,000 bytes": "n" * 60_000,
}
