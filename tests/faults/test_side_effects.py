"""Reading a stranger's file opens that path, maps it, and does nothing else."""

import json
from pathlib import Path

import numpy as np
from tests import builders
from tests.attacks import cases
from tests.support import run_child

import weightmap as wm
from weightmap.core.formats import FORMATS

DATA = Path(__file__).parent.parent / "data"
SUFFIXES = {suffix for found in FORMATS.values() for suffix in found.suffixes}

# An audit hook sees each file opened, module imported, process started, socket made, code compiled, object unpickled.
# `ctypes` and `cffi` events are not such; "object." is about attributes; a warning looks for its caller's frame.
AUDIT = """
import json, os, sys
import numpy as np
import weightmap as wm
from weightmap.core.model.internals import check_unchanged
BESIDE = ("config.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json")
QUIET = ("object.", "cffi.", "ctypes.", "builtins.id", "sys._getframe")
np.seterr(all="ignore")
on, events = False, []

def hook(event, args):
    if on and not event.startswith(QUIET):
        events.append((event, str(args[0]) if args else ""))

def told(error):
    return str(error), repr(error), error.offset, error.field

def use(path, strict):
    # Everything that reads a file and writes none.
    with wm.open(path, strict=strict) as f:
        repr(f), len(f), list(f), f.infos(), dict(f.metadata), f.format, f.layout, f.config, f.tokenizer
        for name in f:
            f.info(name), f[name], f.read(name)
        f.values(), "no such tensor" in f, f.get("no such tensor"), f.prefetch(), check_unchanged(f)
        if f.vocab is not None:
            len(f.vocab), list(f.vocab), f.vocab.get("no such word"), f.vocab.special_ids, f.vocab.ngram_indices("word")
        if f.embeddings is not None:
            f.embeddings.get("no such word"), f.embeddings.batch(["one", "two"])
        f.verify()

def attempt(path, strict):
    try:
        use(path, strict)
    except wm.TensorFileError as error:
        told(error)
    except UnicodeEncodeError:  # a word of the file that is not text, as an argument of ours
        pass

paths = json.load(open(sys.argv[1]))
# Modules loaded on demand, by any file or by an error, are loaded here once; see the last lines.
for path in paths:
    attempt(path, True)
    attempt(path, False)
loaded = set(sys.modules)
sys.addaudithook(hook)
odd, opened, folder = [], 0, os.path.dirname(sys.argv[1])
for path in paths:
    for strict in (True, False):
        events.clear()
        on = True
        attempt(path, strict)
        on = False
        opened += sum(event == "open" and what == path for event, what in events)
        fine = {("open", path), ("mmap.__new__", "-1")}
        # The thread of prefetch, which CPython names from 3.12 on.
        fine |= {event for event in events if event[0].startswith("_thread.") and "plans.pages._Worker" in event[1]}
        # `read` casts possible codes, which the configuration describes.
        fine |= {("open", os.path.join(os.path.dirname(path), name)) for name in BESIDE}
        if path.endswith(".onnx"):  # its data may lie in other files of its folder
            fine |= {event for event in events if event[0] == "open" and os.path.dirname(event[1]) == folder}
        odd += [(path, *event) for event in events if event not in fine]
assert set(sys.modules) == loaded, set(sys.modules) - loaded
print(json.dumps([odd[:10], opened / len(paths)]))
# All modules of a fresh process come from the package, the standard library, or the declared dependencies.
foreign = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
print(sorted(name for name in foreign if not name.startswith("_")))
"""


def test_reading_any_file_opens_that_path_and_nothing_else(tmp_path):
    """The whole corpus, sound and malformed: opening, looking up, decoding, verifying and their errors open one path.

    But `read`, before it casts possible codes, opens the configuration beside the file.

    No content of a file imports a module; nothing is compiled, run or unpickled, and no socket is made.
    """
    examples = {f"{i}-{e.name}{e.suffix}": e.data for i, e in enumerate(builders.examples())}
    alone = (case for case in cases() if isinstance(case.data, bytes) and case.size is None)
    attacks = {f"{i}-attack{'.onnx' * case.kind.startswith('onnx')}": case.data for i, case in enumerate(alone)}
    paths = []
    for name, data in (examples | attacks).items():
        paths.append(str(tmp_path / name.replace("/", "_")))
        Path(paths[-1]).write_bytes(data)
    # The first part of a split model names the others, and they are opened with it.
    data = (path for path in sorted(DATA.rglob("*")) if not path.name.startswith("split-00001-of-"))
    paths += [str(path) for path in data if path.suffix in SUFFIXES]
    (tmp_path / "paths.json").write_text(json.dumps(paths), encoding="utf-8")
    odd, foreign = run_child(AUDIT, tmp_path / "paths.json").stdout.splitlines()
    assert json.loads(odd) == [[], 2]
    assert set(json.loads(foreign.replace("'", '"'))) <= {"weightmap", "numpy", "ml_dtypes", "cffi", "sitecustomize"}


SHARDED = """
import json, os, sys
import weightmap as wm
events = []

def hook(event, args):
    if on and event not in ("mmap.__new__", "object.__getattr__"):
        events.append((event, str(args[0]) if args else ""))

def use(path):
    with wm.open(path) as f:
        [f[name].sum() for name in f], [f.read(name) for name in f], f.verify(), dict(f.metadata)

found = []
on = False
sys.addaudithook(hook)
for path in sys.argv[1:]:
    use(path)  # what is loaded on demand is loaded
    on = True
    use(path)
    on = False
    quiet = "object.", "cffi.", "ctypes.", "builtins.id", "sys._getframe"
    found.append([event for event in events if not event[0].startswith(quiet)])
    events.clear()
print(json.dumps(found))
"""


def test_a_model_of_several_files_opens_its_shards_and_nothing_else(tmp_path):
    """Only the index and the files that it names, by their paths beside it, without resolving links.

    The directory is listed, for the names of files that the index leaves out; given the directory, once more.
    """
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    folder.mkdir()
    names = ["a.safetensors", "b.safetensors", "sub/c.safetensors"]
    (folder / "sub").mkdir()
    index = {"weight_map": {f"t{i}": name for i, name in enumerate(names)}}
    for i, name in enumerate(names):
        wm.save(
            blobs / f"{i}", {f"t{i}": np.ones(3, np.float32)}, format="safetensors", output=wm.Output(durable=False)
        )
        (folder / name).symlink_to(blobs / f"{i}")
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "unnamed.safetensors").symlink_to(blobs / "0")
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index), encoding="utf-8")
    listed = ["os.listdir", str(folder)]
    opened = [["open", str(path)], listed, *(["open", str(folder / name)] for name in names)]
    by_index, by_folder = json.loads(run_child(SHARDED, path, folder).stdout)
    assert by_index == opened
    assert by_folder == [["open", str(folder)], listed, *opened]
