"""One file of compiled code: the second import reads it, and nothing stale or damaged is ever used."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import weightmap

READ = """
import json, os, sys
opened = []
sys.addaudithook(lambda event, args: event == "open" and opened.append(str(args[0])))
import weightmap
package = os.path.join(os.path.dirname(weightmap.__file__), "")
ours = [path for path in opened if path.startswith(package) and path.endswith(".pyc")]
found = [os.path.basename(path).split(".")[0] for path in ours]
assert not [finder for finder in sys.meta_path if "Importing" in repr(finder)]
print(json.dumps([found, weightmap.errors.__file__, getattr(weightmap.errors, "CHANGED", 0)]))
"""
FEW = ["__init__", "startup", "lazy", "_compiled"]


@pytest.fixture
def package(tmp_path):
    """Copy the package without what Python compiled, and import it once."""
    to = tmp_path / "first" / "weightmap"
    shutil.copytree(Path(weightmap.__file__).parent, to, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for module in Path(weightmap.__file__).parent.glob("*.so"):
        (to / module.name).symlink_to(module)
    run(to)
    return to


def run(package, code=READ, *flags):
    """Run it in an interpreter that finds the package there, and may write what it compiles."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    command = [sys.executable, *flags, "-c", code]
    done = subprocess.run(
        command, env=env | {"PYTHONPATH": str(package.parent)}, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout or "null")


def compiled(package):
    """Return the file of all compiled code."""
    [path] = (package / "__pycache__").glob("_compiled.*.pyc")
    return path


def change(path):
    """Give a module an attribute, and another size."""
    path.write_text(path.read_text(encoding="utf-8") + "\nCHANGED = 1\n", encoding="utf-8")


def test_the_second_import_reads_one_file(package):
    assert run(package) == [FEW, str(package / "errors.py"), 0]


def test_modules_are_as_python_makes_them(package):
    """Their places, loaders, sources and packages; importing one again reads it again."""
    run(
        package,
        """
import importlib, importlib.machinery, inspect, sys
import weightmap as wm
modules = [module for name, module in sys.modules.items() if name.startswith("weightmap.")]
for module in modules:
    spec = module.__spec__
    if spec is None or isinstance(spec.loader, importlib.machinery.ExtensionFileLoader):
        continue
    plain = importlib.machinery.PathFinder.find_spec(spec.name, sys.modules[spec.parent or "weightmap"].__path__)
    if spec.submodule_search_locations is not None:
        parent = spec.name.rpartition(".")[0]
        plain = importlib.machinery.PathFinder.find_spec(spec.name, sys.modules[parent].__path__)
    assert isinstance(spec.loader, importlib.machinery.SourceFileLoader)
    assert (spec.origin, spec.cached, spec.has_location) == (plain.origin, plain.cached, True), spec
    assert spec.submodule_search_locations == plain.submodule_search_locations
    assert (module.__file__, module.__cached__) == (spec.origin, spec.cached)
    assert module.__doc__ is None or module.__doc__.splitlines()[0] in inspect.getsource(module)
assert wm.open.__code__.co_filename == wm.model.opening.__file__
assert len(modules) > 40
assert importlib.reload(wm.options) is wm.options
importlib.reload(wm)
""",
    )


def test_a_source_that_changed_is_imported_by_itself(package):
    """And the next import reads one file again."""
    change(package / "errors.py")
    found, _, changed = run(package)
    assert found[:5] == [*FEW, "errors"]
    assert changed == 1
    assert run(package) == [FEW, str(package / "errors.py"), 1]


def test_a_source_that_is_gone(package):
    (package / "formats" / "cnn_v2" / "__init__.py").unlink()
    (package / "formats" / "cnn_v2.py").write_text("from weightmap.formats.npy import FORMAT\n", encoding="utf-8")
    assert run(package, "import json, weightmap; print(json.dumps('cnn_v2' in weightmap.formats()))") is False


def test_another_folder(package):
    """Nothing of the old one is used, even if it is still there."""
    to = package.parent.parent / "second" / "weightmap"
    shutil.copytree(package, to, symlinks=True)
    change(package / "errors.py")
    assert run(to)[1:] == [str(to / "errors.py"), 0]
    assert run(to) == [FEW, str(to / "errors.py"), 0]


@pytest.mark.parametrize("left", [0, 3, 15, 16, 200, 300_000])
def test_a_damaged_file_is_not_used(package, left):
    whole = compiled(package).read_bytes()
    compiled(package).write_bytes(whole[:left])
    assert run(package)[1:] == [str(package / "errors.py"), 0]
    assert compiled(package).read_bytes()[16:] == whole[16:]
    assert run(package)[0] == FEW


def test_nothing_is_written_where_python_writes_nothing(package):
    compiled(package).unlink()
    run(package, READ, "-B")
    assert not list((package / "__pycache__").glob("_compiled.*"))
    shutil.rmtree(package / "__pycache__")
    run(package, READ, "-B")
    assert not (package / "__pycache__").exists()


def test_another_finder_comes_first(package):
    """Such as one that instruments modules: it makes them as it does, and what it made is never written."""
    code = """
import json, sys
from importlib.machinery import PathFinder, SourceFileLoader
class Loader(SourceFileLoader):
    def get_code(self, name):
        return compile(self.get_source(name) + "\\nCHANGED = 1", self.path, "exec")
class Finder:
    def find_spec(self, name, path, target=None):
        if name in ("weightmap.errors", "weightmap.formats.npy"):
            spec = PathFinder.find_spec(name, path, target)
            spec.loader = Loader(name, spec.origin)
            return spec
sys.meta_path.insert(0, Finder())
import weightmap
print(json.dumps([weightmap.errors.CHANGED, sys.modules["weightmap.formats.npy"].CHANGED]))
"""
    assert run(package, code) == [1, 1]
    compiled(package).unlink()
    assert run(package, code) == [1, 1]
    assert run(package)[2] == 0
    assert run(package) == [FEW, str(package / "errors.py"), 0]


def test_an_import_that_fails_leaves_no_finder(package):
    with (package / "errors.py").open("a", encoding="utf-8") as file:
        file.write("raise RuntimeError('not now')\n")
    code = "import sys\ntry: import weightmap\nexcept RuntimeError: assert 'Importing' not in repr(sys.meta_path)"
    run(package, f"{code}\nelse: 1 / 0")
