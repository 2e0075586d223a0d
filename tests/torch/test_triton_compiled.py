"""Triton's kernels as compiled for an H100, which needs no GPU: the machine code rounds each product and each sum."""

import os
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton interprets kernels instead of compiling them", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402 - nothing here makes sense without triton
from triton.compiler import ASTSource  # noqa: E402

from weightmap.device import Change  # noqa: E402

kernels = pytest.importorskip("weightmap.torch._triton")

INTEGERS = {"int8": 0, "int4": 0, "int5": 0, "int4_block": 32, "int5_block": 32, "adaptive": 32}
GGML = sorted(kernels.SCHEMES - set(INTEGERS))
CASES = [(scheme, size, scale) for scheme, size in INTEGERS.items() for scale in ("fp16", "fp32")]
CASES += [(scheme, 0, "") for scheme in GGML]
OUTPUTS = [torch.float32, torch.float16, torch.bfloat16]
pytestmark = pytest.mark.slow
H100 = GPUTarget("cuda", 90, 32)
POINTERS = {torch.uint8: "*u8", torch.int16: "*i16", torch.int32: "*i32", torch.float32: "*fp32"}


class Recorded:
    """A kernel that notes what it is launched with, and does nothing."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.launches = []

    def __getitem__(self, grid):
        return lambda *args, **given: self.launches.append((args, given))


def launched(scheme, size, scale, dtype, monkeypatch):
    """Return the kernel with which `decode` decodes 64 elements, its arguments, and the options."""
    found = [Recorded(kernel) for kernel in (kernels._blocks, kernels._adaptive, *kernels._KERNELS.values())]
    monkeypatch.setattr(kernels, "_blocks", found[0])
    monkeypatch.setattr(kernels, "_adaptive", found[1])
    monkeypatch.setattr(kernels, "_KERNELS", dict(zip(kernels._KERNELS, found[2:], strict=True)))
    data = torch.from_numpy(np.zeros(1024, np.uint8))
    change = Change(scheme, True, "", 64, size, scale)
    kernels.decode(data, change, torch.empty(64, dtype=dtype))
    (used,) = [recorded for recorded in found if recorded.launches]
    ((args, given),) = used.launches
    constants = {name: value for name, value in given.items() if name in used.kernel.arg_names}
    options = {name: value for name, value in given.items() if name not in constants}
    return used.kernel, args, constants, options


def compiled(kernel, args, constants, options):
    """Return the PTX and the SASS of a launch on an H100."""
    types = ["i32" if isinstance(arg, int) else POINTERS[arg.dtype] for arg in args]
    signature = dict(zip(kernel.arg_names, types, strict=False)) | dict.fromkeys(constants, "constexpr")
    assert set(signature) == set(kernel.arg_names)
    made = triton.compile(ASTSource(kernel, signature, constants), target=H100, options=options)
    return made.asm["ptx"], made.asm["sass"]


def fused(ptx, sass):
    """Return the instructions that round a product and a sum once, are approximate, or flush small floats to zero.

    An integer is divided by way of floats, by converting to and from them; that is exact. And HFMA2 of two zeros loads
    a constant.
    """
    found = re.findall(r"^.*\b(?:fma|mad\.\w+\.f|\S+\.(?:ftz|approx|full)\b).*$", ptx, re.MULTILINE)
    for line in sass.splitlines():
        name = re.search(r"\b(?:[DFH]FMA|\w[\w.]*\.FTZ)\S*", line)
        exact = name and (name[0].startswith("F2I") or (name[0].startswith("HFMA2") and ", -RZ, RZ, " in line))
        if name and not exact:
            found.append(line)
    return found


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("dtype", OUTPUTS, ids=str)
@pytest.mark.parametrize(("scheme", "size", "scale"), CASES)
def test_products_and_sums_are_rounded_one_by_one(scheme, size, scale, dtype, monkeypatch):
    ptx, sass = compiled(*launched(scheme, size, scale, dtype, monkeypatch))
    assert "FMUL" in sass
    assert fused(ptx, sass) == []


def test_fused_instructions_would_be_seen(monkeypatch):
    kernel, args, constants, options = launched("q4_k", 0, "", torch.float32, monkeypatch)
    assert options["enable_fp_fusion"] is False
    found = fused(*compiled(kernel, args, constants, options | {"enable_fp_fusion": True}))
    assert any("fma.rn.f32" in line for line in found)
    assert any("FFMA" in line for line in found)
