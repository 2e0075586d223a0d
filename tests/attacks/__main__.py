"""Writes every attack into a folder, with a table of the expected errors: ``python -m tests.attacks FOLDER``."""

import argparse
import csv
from pathlib import Path

from . import cases, rows

HEAD = ("case", "row", "format", "file", "error", "field", "offset", "found by", "warning", "row says")

# Run by another Python, with such a folder as its argument: prints the cases with another outcome than expected.
OUTCOMES = """
import csv, pathlib, sys
import weightmap as wm
folder = pathlib.Path(sys.argv[1])
wrong = []
with open(folder / "attacks.csv", newline="", encoding="utf-8") as table:
    for row in csv.DictReader(table):
        try:
            with wm.open(folder / row["file"], format=row["format"] or None) as f:
                f.verify()
            found = ""
        except wm.TensorFileError as error:
            found = type(error).__name__
        if found != row["error"]:
            wrong.append((row["case"], found))
print(wrong)
"""


def write_all(folder, chosen):
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with (folder / "attacks.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(HEAD)
        for count, case in enumerate(chosen, 1):  # noqa: B007 - the last one is returned
            path = case.write(folder).relative_to(folder)
            when = "" if not case.error else "verify" if case.late else "open"
            offset = "" if case.offset is None else case.offset
            says = rows()[case.row]
            row = (
                case.id,
                case.row,
                case.format or "",
                path,
                case.error,
                case.field or "",
                offset,
                when,
                case.odd or "",
                says,
            )
            table.writerow(row)
    return count


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("folder", type=Path, help="is made, and filled with files")
    folder = parser.parse_args().folder
    count = write_all(folder, cases())
    print(f"{count} attacks in {folder}, listed in {folder / 'attacks.csv'}")  # noqa: T201 - a command


if __name__ == "__main__":
    main()
