"""Times whole workflows beside the tool that a user would use instead: ``python benchmarks/workflows [SCRIPT ...]``.

Each script of this folder has WORKFLOWS, {question: {contender: function}}, and `write(folder, mib)`, which writes its
files. A function prepares (it imports its library) and returns the function to time. Every turn is a new process, and
contenders take turns. ``make workflows`` runs all of them in its own environment, and writes workflows.json, and its
table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import machine  # noqa: E402 - lies beside this folder
from results import span  # noqa: E402
from workflows import common  # noqa: E402

CHILD = [sys.executable, str(HERE / "child.py")]
COLUMNS = ("seconds", "processor", "resident", "anonymous")


def drop(folder: Path) -> None:
    """Write the files of a folder to the disk, and drop them from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def turn(script: str, question: str, who: str, folder: Path) -> dict[str, float]:
    """Run one contender once."""
    command = [*CHILD, script, question, who, str(folder)]
    ended = subprocess.run(command, env=common.environment(), capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{question}: {who} ended with status {ended.returncode}\n{ended.stderr}")
    return json.loads(ended.stdout.splitlines()[-1])


def measure(script: str, turns: int, folder: Path) -> list[dict[str, object]]:
    """Return a row for each contender of a script: medians of its turns."""
    rows = []
    for question, contenders in common.load(script).WORKFLOWS.items():
        taken: dict[str, list[dict[str, float]]] = {who: [] for who in contenders}
        for number in range(turns):
            first = number % len(taken)  # each is first once: the first waits for memory that others have given back
            for who in [*taken][first:] + [*taken][:first]:
                os.sync()  # unflushed bytes of the previous turn do not count
                if question.endswith(common.COLD):
                    drop(folder)
                taken[who].append(turn(script, question, who, folder))
        for who, times in taken.items():
            if all("absent" in one for one in times):
                sys.stdout.write(f"{question}: {who} is left out: {times[0]['absent']}\n")
                continue
            values = {column: median(one[column] for one in times) for column in COLUMNS}
            rows.append({"question": question, "who": who, **values})
            sys.stdout.write(f"{question}: {who}: {span(values['seconds'])}, {values['anonymous']:.0f} MiB\n")
        sys.stdout.flush()
    return rows


def main() -> None:
    """Run the named scripts, or all."""
    scripts = sorted(path.stem for path in HERE.glob("[a-z]*.py") if path.stem not in {"child", "common"})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", choices=[*scripts, []], metavar="SCRIPT", help=", ".join(scripts))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--mib", type=int, default=1024, help="size of the large files")
    parser.add_argument("--json", type=Path, default=Path("workflows.json"))
    options = parser.parse_args()
    rows = []
    for script in options.scripts or scripts:
        with tempfile.TemporaryDirectory(dir=os.environ.get("WEIGHTMAP_FOLDER")) as folder:
            common.load(script).write(Path(folder), options.mib)
            rows += measure(script, options.turns, Path(folder))
    found = {"machine": machine.describe(), "date": time.strftime("%Y-%m-%d"), "mib": options.mib}
    found |= {"turns": options.turns, "rows": rows}
    options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
