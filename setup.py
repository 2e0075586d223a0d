"""Builds the C module; pyproject.toml describes the rest of the package."""

import sysconfig

from setuptools import setup

# The C module uses the stable ABI, so one wheel serves every CPython from 3.11 on. A free-threaded build has no stable
# ABI yet and needs its own wheel.
abi3 = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    cffi_modules=["csrc/build_ffi.py:make_ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if abi3 else {},
)
