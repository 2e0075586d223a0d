"""Builds the C module and the package's description; pyproject.toml describes the rest."""

import re
import sysconfig
from pathlib import Path

from setuptools import setup

# The C module uses the stable ABI, so one wheel serves every CPython from 3.11 on. A free-threaded build has no stable
# ABI yet and needs its own wheel.
abi3 = not sysconfig.get_config_var("Py_GIL_DISABLED")

# Relative links lead into a checkout. The package's description has none beside it: a link keeps its text and names its
# file, which the source distribution has.
readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
description = re.sub(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)", r"\1 (`\2`)", readme)

setup(
    cffi_modules=["csrc/build_ffi.py:make_ffi"],
    long_description=description,
    long_description_content_type="text/markdown",
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if abi3 else {},
)
