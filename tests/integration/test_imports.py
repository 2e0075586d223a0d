"""Who may import whom: the plan of the package, held by reading its sources."""

import ast
import functools
import json
import re
import subprocess
import sys

import pytest
from tests.attacks import sound
from tests.places import ROOT
from tests.support import in_one_item

import weightmap

PACKAGE = ROOT / "src" / "weightmap"

# Three storeys: a module imports from those below it. The floors of the core, from the ground up:
GROUND = {"_messages", "errors", "_kernels"}
CORE = [
    {"arguments", "dtypes", "faults", "hooks"},
    {"native"},
    {"bytes"},
    {"table"},
    {"quant"},
    {"formats"},
    {"model"},
]
FLOOR = {name: floor for floor, names in enumerate(CORE) for name in names}
FACES = {"kernels", "typing"}
# Each part, and the parts that it uses. All of them use the core; the core and its faces use none (but see `HOOKED`).
PARTS = {
    "checkpoints": set(),
    "cli": {"checkpoints", "conversion", "deltas", "huggingface", "llama", "report", "trust", "words"},
    "compat": {"plans", "torch"},
    "conversion": {"checkpoints", "huggingface", "llama", "trust", "words"},
    "dcp": {"plans", "torch"},
    "deltas": {"conversion", "huggingface", "plans", "remote"},
    "device": {"plans"},
    "dlpack": set(),
    "hub": {"remote"},
    "huggingface": {"checkpoints"},
    "jax": {"checkpoints", "plans"},
    "llama": {"checkpoints", "huggingface"},
    "onnxruntime": set(),
    "plans": {"checkpoints", "conversion"},
    "pool": {"checkpoints", "plans"},
    "remote": set(),
    "report": {"checkpoints", "conversion", "huggingface"},
    "torch": {"checkpoints", "device", "plans", "pool"},
    "trust": set(),
    "vllm": {"deltas", "device", "plans", "torch"},
    "words": {"huggingface"},
}
# Methods of the core that import their part in one line, by a string: no annotation names a part.
HOOKED = {
    "core.model.file": {"plans", "pool"},
    "core.model.internals": {"words"},
    "core.model.saving": {"trust"},
    "core.quant.quantizing": {"words"},
}


def dotted(path):
    """Name of a source file within the package: "" for the package itself, "formats.embd", "cli"."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def resolve(name):
    """Longest part of a dotted name, relative to the package, that is a module and not a function or a class in one."""
    while name and name not in MODULES and name != "_kernels":
        name = name.rpartition(".")[0]
    return name


def imports(module):
    """Modules of this package that `module` imports: at its top, in functions, for type checkers, or by a string."""
    return set().union(*imports_by_kind(module))


@functools.cache
def imports_by_kind(module):
    """What a module imports by statements, and by strings."""
    path = MODULES[module]
    package = ["weightmap", *filter(None, module.split("."))]
    if path.stem != "__init__":
        package.pop()
    stated, spelled = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        kind = spelled if isinstance(node, ast.Call) else stated
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            # `from weightmap import x` imports the face of the package, too.
            names = [f"{base}.{alias.name}" for alias in node.names] + [base] * (base == "weightmap")
        elif isinstance(node, ast.Call) and name_of(node.func) in {"import_module", "import_part", "later"}:
            names = spelt(node.args[0])
        else:
            continue
        kind |= {resolve(name.partition(".")[2]) for name in names if name.split(".")[0] == "weightmap"}
    return stated - {module}, spelled - {module}


def name_of(function):
    return getattr(function, "id", getattr(function, "attr", None))


def spelt(node):
    """Modules of this package that a string may name; braces in it are any name.

    A package that names its own modules, by ``{__name__}``, is left out.
    """
    pieces = node.values if isinstance(node, ast.JoinedStr) else [node]
    pattern = "".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else r"\w+" for p in pieces)
    names = ["weightmap", *map("weightmap.{}".format, filter(None, MODULES))]
    return [name for name in names if pattern.startswith("weightmap") and re.fullmatch(pattern, name)]


def part(module):
    """First part of a module's name: a part of the package, "core", or a face."""
    return module.partition(".")[0]


def floor(module):
    """Floor of a module of the core; its introduction is the roof."""
    return FLOOR[module.split(".")[1]] if "." in module else len(CORE)


@in_one_item("module", [module for module in MODULES if part(module) == "core"])
def test_a_module_of_the_core_imports_from_its_floor_and_below(module):
    """Imports in functions, for type checkers and by strings count, too."""
    ours = {other for other in imports(module) if part(other) == "core"}
    assert not {other for other in ours if floor(other) > floor(module)}
    stated, spelled = ({part(other) for other in others} for others in imports_by_kind(module))
    assert stated <= {"core"} | GROUND
    assert spelled <= {"core"} | HOOKED.get(module, set())


@in_one_item("module", [module for module in MODULES if part(module) in PARTS])
def test_a_module_of_a_part_imports_parts_that_it_may_use(module):
    used = {part(other) for other in imports(module)}
    assert "" not in used or part(module) in {"cli", "compat"}  # they use the package as its users do
    assert used - {"", "core", part(module)} <= PARTS[part(module)] | GROUND | FACES


def test_every_part_that_may_be_used_is_used():
    for name, allowed in PARTS.items():
        assert allowed <= {part(other) for module in MODULES if part(module) == name for other in imports(module)}
    for module, allowed in HOOKED.items():
        assert allowed <= {part(other) for other in imports(module)}


@pytest.mark.parametrize("face", sorted(FACES))
def test_a_face_imports_the_core_alone(face):
    assert {part(other) for other in imports(face)} == {"core"}


def test_every_module_has_a_place():
    places = PARTS.keys() | GROUND - {"_kernels"} | FACES | {"", "__main__", "core"}
    assert {part(module) for module in MODULES} == places
    assert not [name for name in PARTS if not [*ROOT.glob(f"tests/{name}/test_*.py")]]  # make test PART=name


def test_no_imports_go_in_a_circle():
    remaining = {module: imports(module) & set(MODULES) for module in MODULES}
    while ready := [module for module, needs in remaining.items() if not needs & remaining.keys()]:
        for module in ready:
            del remaining[module]
    assert not remaining


@in_one_item("module", [name for name in MODULES if name.startswith("core.formats.")])
def test_no_format_imports_another(module):
    own = ".".join(module.split(".")[:3])
    others = {other for other in imports(module) if other.startswith("core.formats") and not other.startswith(own)}
    assert all(other.startswith("core.formats._") for other in others - {"core.formats"})


def test_only_native_touches_the_c_module():
    assert all(module.startswith("core.native.") for module in MODULES if "_kernels" in imports(module))


def test_the_ground_imports_nothing_of_ours():
    assert not imports("_messages")
    assert imports("errors") == {"_messages"}
    assert imports("core.hooks") | imports("core.arguments") <= GROUND


@pytest.mark.parametrize(
    "statements",
    [
        "import weightmap",
        "import weightmap, weightmap.kernels, weightmap.core.formats; weightmap.formats()",
        "import weightmap.cli",
    ],
)
def test_importing_is_light(statements):
    heavy = {"torch", "jax", "rich", "ml_dtypes", "tokenizers", "safetensors", "huggingface_hub", "tomllib"}
    loaded = loaded_by(statements)
    assert "weightmap" in loaded
    assert not heavy & loaded


def loaded_by(statements):
    """Modules that these statements import, in a process of their own that has numpy."""
    code = (
        f"import json, sys, numpy; old = {{*sys.modules}}; {statements}; print(json.dumps([*{{*sys.modules}} - old]))"
    )
    command = [sys.executable, "-B", "-c", code]
    return set(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def formats_in(loaded):
    """Formats among these modules."""
    names = {name.split(".")[3] for name in loaded if name.startswith("weightmap.core.formats.")}
    return {name for name in names if not name.startswith("_")}


def test_importing_imports_no_format():
    loaded = loaded_by("import weightmap; weightmap.formats()")
    assert formats_in(loaded) == set()
    assert not {*loaded} & {"json", "dataclasses", "logging", "concurrent.futures", "pkgutil", "tempfile"}


@pytest.mark.parametrize("kind", {kind.partition("-")[0]: kind for kind in sound()}.values())
def test_a_file_imports_its_format_and_no_other(kind, tmp_path):
    """npy and npz share the reading of arrays; no other format uses another's modules."""
    path = tmp_path / "model"
    path.write_bytes(sound()[kind])
    loaded = loaded_by(f"import weightmap; weightmap.open({str(path)!r}).close()")
    assert formats_in(loaded) == {kind.partition("-")[0]}


def test_a_directory_imports_the_format_of_its_model(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(next(content for kind, content in sound().items() if kind.startswith("safetensors")))
    assert formats_in(loaded_by(f"import weightmap; weightmap.open({str(tmp_path)!r}).close()")) == {"safetensors"}


STATE = """
import gc, os, sys
del sys.argv
gc.set_threshold(123, 4, 5)
def state():
    return gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), [*sys.meta_path], os.listdir(".")
"""


@pytest.mark.parametrize("collects", [True, False])
def test_importing_leaves_the_process_as_it_was(collects, tmp_path):
    """The collector, the finders and the folder are as before; the program's arguments are not read."""
    code = STATE + f"gc.{'enable' if collects else 'disable'}(); old = state(); import weightmap; assert state() == old"
    subprocess.run([sys.executable, "-B", "-c", code], check=True, cwd=tmp_path)


@pytest.mark.parametrize(
    "module", ["numpy", "weightmap.errors", "weightmap.core.native.access", "weightmap.core.model.opening"]
)
def test_an_interrupted_import_leaves_the_process_as_it_was(module, tmp_path):
    """And the next import succeeds."""
    code = f"""
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
finder = Interrupting()
sys.meta_path.insert(0, finder)
old = state()
try:
    import weightmap
except KeyboardInterrupt:
    assert state() == old
    sys.meta_path.remove(finder)
    import weightmap
    weightmap.open
else:
    1 / 0
"""
    subprocess.run([sys.executable, "-B", "-c", STATE + code], check=True, cwd=tmp_path)


def test_the_package_lists_its_exports():
    """Completion offers them, too: `dir` has these names, and dunders."""
    for module in (weightmap, weightmap.deltas, weightmap.words):
        assert [name for name in dir(module) if not name.startswith("__")] == sorted(module.__all__)
    assert list(weightmap.__all__) == sorted(set(weightmap.__all__))
    assert not [name for name in weightmap.__all__ if not hasattr(weightmap, name)]
    documented = {"TensorFile", "TensorInfo", "Vocabulary", "convert", "diff", "formats", "load", "open", "save"}
    assert documented <= set(weightmap.__all__)


def test_modules_are_found_without_an_import_of_their_own():
    """``import weightmap`` is enough to name them, and loads none; other names stay an error."""
    code = "import sys, weightmap; old = {*sys.modules}; print(weightmap.torch.load_file, weightmap.compat.numpy.save)"
    code += "; assert not {'weightmap.torch', 'weightmap.compat'} & old; assert not hasattr(weightmap, 'toch')"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
