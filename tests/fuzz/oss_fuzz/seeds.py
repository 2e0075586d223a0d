"""Writes what each harness begins with, and its dictionary: ``python tests/fuzz/oss_fuzz/seeds.py FOLDER``.

OSS-Fuzz wants an archive ``fuzz_embd_seed_corpus.zip`` and a file ``fuzz_embd.dict`` beside ``fuzz_embd``; ``--plain``
makes a folder ``fuzz_embd`` in place of the archive, for a run by hand.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.attacks import cases
from tests.fuzz.corpus import FORMATS, seeds
from tests.fuzz.dictionary import FORMS, NUMBERS, PARTS, STRINGS, TEXTS, TOKENS

LARGEST = 4096
TEXTUAL = {"safetensors", "sharded", "amb", "finalfusion"}


def inputs(format: str) -> list[bytes]:
    """What a harness begins with: the valid files, and the attacks that are small."""
    attacks = [case.data for case in cases() if case.kind.partition("-")[0] == format and isinstance(case.data, bytes)]
    return list(dict.fromkeys([*seeds(format), *(data for data in attacks if len(data) <= LARGEST)]))


def words(format: str) -> set[bytes]:
    """What may be put into a file of the format."""
    numbers = {(value & (1 << 8 * size) - 1).to_bytes(size, "little") for value in NUMBERS for size in (2, 4, 8)}
    found = {*numbers, *TEXTS}
    if format == "bintensors":
        found |= set(FORMS)
    if format in TEXTUAL:
        found |= {*STRINGS, *TOKENS, *PARTS}
    return {word for word in found if 0 < len(word) <= 64}


def quoted(word: bytes) -> str:
    """A word as libFuzzer's dictionaries have it."""
    return '"' + "".join(chr(b) if 0x20 <= b < 0x7F and b not in b'"\\' else f"\\x{b:02x}" for b in word) + '"'


def main() -> None:
    """Write them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plain", action="store_true", help="folders in place of archives")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for format in FORMATS:
        name = f"fuzz_{format}"
        lines = "\n".join(map(quoted, sorted(words(format))))
        (args.folder / f"{name}.dict").write_text(lines + "\n", encoding="ascii")
        if args.plain:
            (args.folder / name).mkdir(exist_ok=True)
            for number, data in enumerate(inputs(format)):
                (args.folder / name / f"{number:04}").write_bytes(data)
        else:
            with zipfile.ZipFile(args.folder / f"{name}_seed_corpus.zip", "w", zipfile.ZIP_DEFLATED) as archive:
                for number, data in enumerate(inputs(format)):
                    archive.writestr(f"{number:04}", data)


if __name__ == "__main__":
    main()
