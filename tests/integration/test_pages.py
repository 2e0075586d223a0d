"""`make docs` builds: no warning, no link without a target, and each public name has its place."""

import importlib
import re
import subprocess
import sys

import pytest
from tests.places import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    pytest.importorskip("sphinx")
    pytest.importorskip("furo")
    folder = tmp_path_factory.mktemp("pages")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.parametrize("name", ["weightmap", "weightmap.kernels", "weightmap.errors", "weightmap.dlpack"])
def test_each_public_name_is_documented(pages, name):
    ids = set(re.findall(r'id="([\w.]+)"', (pages / "api" / f"{name}.html").read_text(encoding="utf-8")))
    module = importlib.import_module(name)
    left_out = {"kernels"}  # a module, with a page of its own
    documented = [each for each in module.__all__ if callable(getattr(module, each)) and each not in left_out]
    assert documented
    assert not [each for each in documented if f"{name}.{each}" not in ids]


def test_links_between_pages_have_targets(pages):
    texts = {path: path.read_text(encoding="utf-8") for path in pages.rglob("*.html") if "_modules" not in path.parts}
    missing = []
    for page, text in texts.items():
        for target in re.findall(r'<a [^>]*href="([^":]*)"', text):
            file, _, heading = target.partition("#")
            path = (page.parent / file).resolve() if file else page
            anchor = f'id="{heading}"'
            if not path.exists() or (heading and anchor not in texts.get(path, anchor)):
                missing.append((page, target))
    assert not missing
