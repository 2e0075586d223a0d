"""The attacks in other libraries.

``python -m benchmarks.attacks_elsewhere [LIBRARY=INTERPRETER ...] [--into FILE]`` prints tables in Markdown: what was
tried and when; by row, how many attacks each library lets through, answers with something other than an error of its
own or a ValueError, or does not survive, in 4 GiB of address space; and what it does in a few situations. ``--into
benchmarks/NOTES.md`` writes the last table there, between two marks. The script tries a library if the interpreter has
it; ``finalfusion=/path/to/python`` names another interpreter for one.
"""

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from tests.attacks import cases, rows, sound
from tests.attacks.table import put_between

# How a library reads all of a file, and its kinds of cases, without the specification's layout if it reads only another
# one.
READ = {
    "weightmap": """
import weightmap as wm
def read(path):
    with wm.open(path, format=None) as f:
        f.verify()
        return [a.tobytes() if hasattr(a, "tobytes") else a for a in f.values()], list(f.vocab or ())
OWN = wm.TensorFileError
""",
    "bintensors": """
import bintensors, bintensors.numpy
def read(path):
    return [a.tobytes() for a in bintensors.numpy.load_file(path).values()]
OWN = bintensors.BintensorError
""",
    "safetensors": """
import safetensors, safetensors.numpy
def read(path):
    return [a.tobytes() for a in safetensors.numpy.load_file(path).values()]
OWN = safetensors.SafetensorError
""",
    "finalfusion": """
import finalfusion, finalfusion.io
def read(path):
    e = finalfusion.load_finalfusion(path)
    return [e.storage[i].tobytes() for i in range(min(e.storage.shape[0], 100))], list(e.vocab.words)
OWN = finalfusion.io.FinalfusionFormatError
""",
}
KINDS = {"bintensors": ("bintensors-current",), "safetensors": ("safetensors",), "finalfusion": ("finalfusion",)}
KINDS["weightmap"] = ("bintensors-current", "safetensors", "finalfusion")

# Reads the files that standard input names, one after another, and prints the outcome of each.
CHILD = """
import json, resource, sys
{read}
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for line in sys.stdin:
    try:
        read(line.strip())
        outcome = "accepted"
    except (OWN, ValueError):
        outcome = "refused"
    except BaseException as error:
        outcome = type(error).__name__
    print(json.dumps(outcome), flush=True)
"""
PATIENCE = 10  # seconds for one file


class Child:
    """A process that reads files by one library and tells the outcome of each."""

    def __init__(self, library, interpreter):
        self._command = [interpreter, "-c", CHILD.format(read=READ[library])]
        self._process = None

    def outcome(self, path):
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{path}\n")
        process.stdin.flush()
        import select

        ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
        answer = process.stdout.readline() if ready else ""
        if answer:
            return json.loads(answer)
        self.close()
        return f"ends by signal {-process.returncode}" if ready else f"hangs more than {PATIENCE} s"

    def close(self):
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def chosen(library):
    """The attacks on the formats that a library reads."""
    for case in cases():
        theirs = case.kind.startswith(KINDS[library]) and "specification" not in case.name
        if theirs and case.error and case.size is None:
            yield case


def table(found):
    """The table's lines by row, for rows that some library lets through."""
    libraries = list(found)
    yield "| row | attack | " + " | ".join(libraries) + " |"
    yield "|---|---|" + "---|" * len(libraries)
    for row, sentence in rows().items():
        cells = [cell(found[library][row]) for library in libraries]
        if any("refuses all" not in text for text in cells if text):
            yield f"| {row} | {sentence} | " + " | ".join(cells) + " |"


def cell(outcomes):
    """How many attacks a library refuses, or the outcome of the others."""
    total = outcomes.total()
    if not total:
        return ""
    if outcomes["refused"] == total:
        return f"refuses all {total}"
    others = [f"{outcome} {count}" for outcome, count in outcomes.most_common() if outcome != "refused"]
    return f"of {total}: {', '.join(others)}"


# How a library saves an array of a MiB, and opens the file again.
SAVE = {
    "weightmap": """
import numpy as np
save = lambda path: wm.save(path, {"a": np.ones(1 << 18, "f4")}, format="bintensors")
view = lambda path: wm.open(path)
""",
    "bintensors": """
import numpy as np
save = lambda path: bintensors.numpy.save_file({"a": np.ones(1 << 18, "f4")}, path)
view = lambda path: bintensors.safe_open(path, "np")
""",
    "safetensors": """
import numpy as np
save = lambda path: safetensors.numpy.save_file({"a": np.ones(1 << 18, "f4")}, path)
view = lambda path: safetensors.safe_open(path, "np")
""",
}
# Situations: an action, and the ways to answer it.
SCENES = {
    "opening a FIFO": """
import os
os.mkfifo("fifo")
try:
    read("fifo"); print("reads it")
except BaseException as error:
    print("refuses:", type(error).__name__)
""",
    "saving with a umask of 022: mode of the file": """
import os
os.umask(0o022); save("new"); print(oct(os.stat("new").st_mode & 0o777))
""",
    "saving onto a symbolic link": """
import os
open("target", "wb").write(b"old"); os.symlink("target", "link"); save("link")
print("stays a link" if os.path.islink("link") else "replaced by a file")
""",
    "saving over a file when the disk is full": """
import os, resource
open("model", "wb").write(b"old" * 1000)
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    save("model")
except BaseException: pass
print("old file stays" if open("model", "rb").read() == b"old" * 1000 else "old file is lost")
""",
    "a file is truncated after it was opened, and a tensor is asked for": """
import os
save("model"); f = view("model"); os.truncate("model", 4096)
try:
    array = f["a"] if hasattr(f, "__getitem__") else f.get_tensor("a")
    print(array.sum())
except BaseException as error:
    print("raises", type(error).__name__)
""",
}


def scene(library, interpreter, name):
    """A library's behaviour in one of the situations."""
    if "save(" in SCENES[name] and library not in SAVE:
        return ""
    code = "\n".join((READ[library], SAVE.get(library, ""), SCENES[name]))
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [interpreter, "-c", code], cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            return f"hangs more than {PATIENCE} s"
    return done.stdout.strip() or (f"ends by signal {-done.returncode}" if done.returncode < 0 else done.stderr[-99:])


def version(library, interpreter):
    """The version of a library that an interpreter has."""
    code = {"weightmap": "import weightmap; print(weightmap.__version__)"}.get(
        library, f"import importlib.metadata as m; print(m.version({library!r}))"
    )
    return subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def lines(interpreters, *, attacks):
    """The lines of the tables, for the installed libraries."""
    found = {}
    scenes = {name: [] for name in SCENES}
    versions = []
    for library, interpreter in interpreters.items():
        with tempfile.TemporaryDirectory() as folder:
            child = Child(library, interpreter)
            good = Path(folder) / "good"
            good.write_bytes(sound()[KINDS[library][0]])
            if child.outcome(good) != "accepted":
                child.close()
                continue
            found[library] = defaultdict(Counter)
            for case in chosen(library) if attacks else ():
                found[library][case.row][child.outcome(case.write(Path(folder)))] += 1
            child.close()
        versions.append(f"{library} {version(library, interpreter)}")
        for name in SCENES:
            scenes[name].append(scene(library, interpreter, name))
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    system = f"{platform.system()} on {platform.machine()}, CPython {platform.python_version()}"
    yield f"Measured on {today}, {system}: {', '.join(versions)}."
    yield ""
    if attacks:
        yield from table(found)
        yield ""
    yield "| situation | " + " | ".join(found) + " |"
    yield "|---|" + "---|" * len(found)
    for name, answers in scenes.items():
        yield f"| {name} | " + " | ".join(answers) + " |"


def main():
    """Print the tables, or put the table of situations into a document."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks_elsewhere", description=__doc__)
    parser.add_argument("interpreters", nargs="*", metavar="LIBRARY=INTERPRETER", help="where a library is installed")
    parser.add_argument("--into", type=Path, metavar="FILE", help="a document with the two marks")
    args = parser.parse_args()
    interpreters = dict.fromkeys(READ, sys.executable)
    interpreters |= dict(argument.split("=", 1) for argument in args.interpreters)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    text = list(lines(interpreters, attacks=args.into is None))
    if args.into is None:
        print("\n".join(text))  # noqa: T201 - a command
    else:
        put_between(args.into, "benchmarks.attacks_elsewhere", text)


if __name__ == "__main__":
    main()
