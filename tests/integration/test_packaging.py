"""Users install a source distribution that builds by itself, or one wheel for every Python from 3.11 on."""

import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.places import ROOT

pytestmark = pytest.mark.slow
SOURCES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").rglob("*.[ch]"))

# Writes a file, opens it again and compares, through the installed package alone.
USE = """
import sys, tempfile, pathlib
import numpy as np
import weightmap as wm
package = pathlib.Path(wm.__file__).resolve().parent
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "a.safetensors"
    wm.save(path, {"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
    with wm.open(path) as f:
        assert f["w"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
assert wm.kernels.crc32(b"123456789") == 0xCBF43926
print(package)
"""


def run(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def build(folder):
    """Build a source distribution, and a wheel from its content, not from the working tree."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    run(*command, "--sdist", ".", cwd=ROOT)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    run(*command, "--wheel", ".", cwd=source)


@pytest.fixture(scope="module")
def sdist(once):
    (path,) = once("packages", build).glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(once):
    (path,) = once("packages", build).glob("*.whl")
    return path


def test_the_source_distribution_is_complete(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"LICENSE", "README.md", "Makefile", "pyproject.toml", "setup.py", "csrc/build_ffi.py"}
    wanted |= {"tests/integration/test_packaging.py", "benchmarks/conftest.py", "requirements/model.txt", *SOURCES}
    assert wanted <= names
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc")) or name.startswith((".venv", "build"))]


def test_the_wheel_keeps_to_the_stable_abi(wheel):
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("free-threaded builds have no stable ABI")
    assert wheel.name.split("-")[2:4] == ["cp311", "abi3"]
    with zipfile.ZipFile(wheel) as archive:
        compiled = [name for name in archive.namelist() if name.endswith((".so", ".pyd"))]
    assert len(compiled) == 1
    assert compiled[0].startswith("weightmap/_kernels.")


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = ROOT / "src" / "weightmap"
    modules = {f"weightmap/{path.relative_to(package).as_posix()}" for path in package.rglob("*.py")}
    assert modules | {"weightmap/py.typed", "weightmap/_kernels.pyi"} <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"weightmap"}
    assert not [name for name in names if name.endswith((".c", ".h", ".o"))]
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_the_description_leads_nowhere_that_is_not_there(wheel):
    """The package's description is the README, without links into a checkout; its metadata invents no address."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata, _, description = archive.read(name).decode().partition("\n\n")
    assert description.startswith("# weightmap\n")
    assert not re.findall(r"\]\((?!https?:)[^)]*\)", description)
    assert "`docs/start.md`" in description
    assert not re.findall(r"^(?:Project-URL|Home-page):.*", metadata, re.MULTILINE)


def test_the_wheel_works_where_it_is_installed(wheel, tmp_path):
    """Installed into an environment of its own, it writes and reads a file, with the sources out of sight."""
    run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=tmp_path)
    python = str(tmp_path / "env" / "bin" / "python")
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    install = f"-m pip install --no-deps --no-index --target {site} {wheel}"
    run(sys.executable, *install.split(), cwd=tmp_path)
    # numpy and cffi come from this environment, without network. A path file is read for its paths only, so an editable
    # installation of weightmap in that folder stays unseen.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    package = Path(run(python, "-I", "-c", USE, cwd=tmp_path).strip())
    assert package == (site / "weightmap").resolve()
