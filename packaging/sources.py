"""Unpack the source distribution of an installed package that maturin built, for its tests: NAME FOLDER.

pip asks the build backend for the metadata of a download, and maturin asks Rust's registry; the file already has them.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

# In place of maturin.
_BACKEND = """
import pathlib, shutil
def prepare_metadata_for_build_wheel(folder, settings=None):
    path = pathlib.Path(folder, "NAME.dist-info")
    path.mkdir()
    shutil.copy("PKG-INFO", path / "METADATA")
    return path.name
"""


def main(name: str, folder: str) -> None:
    """Download the distribution of the installed version, and put its content in place of a folder."""
    pinned = f"{name}=={version(name)}"
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-binary", name]
    with tempfile.TemporaryDirectory() as place:
        Path(place, "maturin.py").write_text(_BACKEND.replace("NAME", pinned.replace("==", "-")), encoding="utf-8")
        subprocess.run(  # noqa: S603 - pip, with the arguments above
            [sys.executable, "-m", "pip", "download", *options, "--dest", place, pinned],
            env={**os.environ, "PYTHONPATH": place},
            check=True,
        )
        (archive,) = Path(place).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(place, filter="data")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(Path(place, archive.name.removesuffix(".tar.gz")), folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
