"""Triton's kernels decode what the CPU decodes, bit for bit: on a GPU, or by its interpreter (TRITON_INTERPRET=1)."""

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1: make device-test", allow_module_level=True)
pytest.importorskip("triton")

import weightmap as wm  # noqa: E402 - nothing here makes sense without torch
from weightmap.core.native import quantised  # noqa: E402
from weightmap.core.quant.blocks import QuantizedTensor  # noqa: E402
from weightmap.core.quant.ggml import GgmlTensor, quantize_ggml  # noqa: E402
from weightmap.device import Change, Staging  # noqa: E402
from weightmap.torch import TorchBackend  # noqa: E402
from weightmap.torch._device import load_plan  # noqa: E402

triton_kernels = pytest.importorskip("weightmap.torch._triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RNG = np.random.default_rng(7)
BITS = {"int8": 8, "int4": 4, "int5": 5, "int4_block": 4, "int5_block": 5}
GGML = ("q4_0", "q8_0", "q4_k", "q6_k", "mxfp4", "nvfp4")  # nothing here quantises to the last one
OUTPUTS = [torch.float32, torch.float16, torch.bfloat16]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy warns of infinities


def change_of(q):
    if q.scheme in GGML:
        return Change(q.scheme, quantized=True, dtype="", elements=q.size)
    return Change(q.scheme, True, "", q.size, q.block_size, q.scale_type)


def assert_decoded(q, dtype=torch.float32):
    """Every bit agrees with the CPU's; a NaN in a shorter type keeps its sign and the upper bits of its fraction."""
    out = torch.full((q.size,), 7, dtype=dtype, device=DEVICE)
    triton_kernels.decode(torch.from_numpy(np.array(q.payload)).to(DEVICE), change_of(q), out)
    values = q.dequantize().reshape(-1)
    expected = torch.from_numpy(values).to(dtype)
    width = {4: torch.int32, 2: torch.int16}[dtype.itemsize]
    found, wanted = out.cpu().view(width).numpy(), expected.view(width).numpy()
    if dtype != torch.float32:
        bits, quiet, shift = values.view(np.uint32), *((0x7E00, 13) if dtype == torch.float16 else (0x7FC0, 16))
        nan = (bits >> 16 & 0x8000) | quiet | (bits >> shift & (quiet ^ 0x7FFF))
        wanted = np.where(np.isnan(values), nan.astype(np.uint16).view(np.int16), wanted)
    assert np.array_equal(found, wanted), (found[found != wanted][:5], wanted[found != wanted][:5])


@pytest.mark.parametrize("dtype", OUTPUTS, ids=str)
@pytest.mark.parametrize("scale_type", ["fp16", "fp32"])
@pytest.mark.parametrize("scheme", [*BITS, "adaptive"])
def test_integers_and_scales(scheme, scale_type, dtype):
    for n in (1, 7, 963, 2051):
        values = RNG.standard_normal(n).astype(np.float32) * np.exp(3 * RNG.standard_normal(n)).astype(np.float32)
        for block_size in (16, 32, 64) if scheme in {"int4_block", "int5_block", "adaptive"} else (None,):
            given = {} if block_size is None else {"block_size": block_size}
            given |= {"bits": 8} if scheme == "adaptive" else {}
            assert_decoded(wm.quantize(values, scheme, scale_type=scale_type, **given), dtype)


@pytest.mark.parametrize("dtype", OUTPUTS, ids=str)
@pytest.mark.parametrize("scheme", GGML)
def test_blocks_of_ggml(scheme, dtype):
    if scheme != GGML[-1]:
        assert_decoded(quantize_ggml(RNG.standard_normal((3, 1024)).astype(np.float32), scheme), dtype)
    kind = quantised.GGML_TYPES[scheme]
    for _ in range(5):
        octets = RNG.integers(0, 256, 60 * kind.block_bytes, np.uint8)
        assert_decoded(GgmlTensor(scheme, (60 * kind.block_size,), octets), dtype)


@pytest.mark.parametrize("dtype", OUTPUTS, ids=str)
@pytest.mark.parametrize("scale_type", ["fp16", "fp32"])
@pytest.mark.parametrize("scheme", BITS)
def test_any_bytes(scheme, scale_type, dtype):
    block_size = 32 if scheme.endswith("block") else 0
    n = 3200 if block_size else 999
    size = quantised.blocks_size(n, bits=BITS[scheme], block_size=block_size, scale_type=scale_type)
    for _ in range(5):
        octets = RNG.integers(0, 256, size, np.uint8)
        assert_decoded(QuantizedTensor(scheme, (n,), octets, block_size=block_size, scale_type=scale_type), dtype)
    for bits in (0x7C00, 0xFC00, 0x7E01, 0x0001, 0x8000):
        octets[: 2 if scale_type == "fp16" else 4] = np.frombuffer(bits.to_bytes(4, "little"), np.uint8)[
            : 2 if scale_type == "fp16" else 4
        ]
        assert_decoded(QuantizedTensor(scheme, (n,), octets, block_size=block_size, scale_type=scale_type), dtype)


@pytest.mark.parametrize("dtype", OUTPUTS, ids=str)
def test_halves_of_adaptive_blocks_keep_every_bit(dtype):
    octets = np.concatenate(
        [np.full(1024 // 4 * 4 // 4, 0xAA, np.uint8), np.arange(65536, dtype=np.uint16).view(np.uint8)]
    )
    assert_decoded(QuantizedTensor("adaptive", (65536,), octets, block_size=64), dtype)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("slot", [1 << 14, 1 << 25])
def test_files_arrive_as_the_cpu_decodes_them(tmp_path, slot, dtype):
    values = RNG.standard_normal((64, 512)).astype(np.float32)
    tensors = {scheme: wm.quantize(values, scheme) for scheme in (*BITS, "adaptive")}
    wm.save(tmp_path / "a.amb", tensors)
    wm.save(tmp_path / "a.gguf", {scheme: quantize_ggml(values, scheme) for scheme in GGML[:-1]})
    for name in ("a.amb", "a.gguf"):
        with wm.open(tmp_path / name) as file:
            for index in (..., np.s_[16:48], np.s_[5:9, ::-1]):
                with wm.plan(file, dict.fromkeys(file, index)) as plan:
                    for tensor, got in load_plan(plan, DEVICE, dtype=dtype, staging=Staging(2, slot)):
                        expected = torch.from_numpy(np.ascontiguousarray(file[tensor].dequantize()[index])).to(
                            got.dtype
                        )
                        assert torch.equal(got.cpu(), expected), (tensor, index)
    assert all(TorchBackend(DEVICE).decodes(scheme) for scheme in (*tensors, *GGML))
    assert not TorchBackend(DEVICE).decodes("q2_k")
