"""Writes the inputs that guided fuzzing begins with: ``python -m tests.fuzz.seeds FOLDER`` prints the formats.

OSS-Fuzz wants an archive ``fuzz_embd_seed_corpus.zip`` and a file ``fuzz_embd.dict`` beside ``fuzz_embd``; ``--plain``
makes a folder ``fuzz_embd`` in place of the archive, for a run by hand.
"""

import argparse
import zipfile
from pathlib import Path

from tests import builders
from tests.attacks import cases

from .corpus import CHECKPOINT, FORMATS, seeds
from .dictionary import MARKUP, NUMBERS, TEXTS

LARGEST = 4096


def inputs(format):
    attacks = [case.data for case in cases() if case.kind.partition("-")[0] == format and isinstance(case.data, bytes)]
    return list(dict.fromkeys([*seeds(format), *(data for data in attacks if len(data) <= LARGEST)]))


def words(format):
    numbers = {(value & (1 << 8 * size) - 1).to_bytes(size, "little") for value in NUMBERS for size in (2, 4, 8)}
    builder = builders.known().get(format)
    found = {*numbers, *TEXTS, *(MARKUP if builder is None else builder.dictionary)}
    return {word for word in found if 0 < len(word) <= 64}


def quoted(word):
    return '"' + "".join(chr(b) if 0x20 <= b < 0x7F and b not in b'"\\' else f"\\x{b:02x}" for b in word) + '"'


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.seeds", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plain", action="store_true", help="folders in place of archives")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for format in (*FORMATS, CHECKPOINT):
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
        print(format)


if __name__ == "__main__":
    main()
