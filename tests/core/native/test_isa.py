"""Choosing among instruction sets, and the C driver that tests the kernels without Python."""

import platform
import subprocess
from pathlib import Path

import pytest
from tests.support import compiled, run_child

from weightmap import kernels
from weightmap.core.native import access

X86 = platform.machine().lower() in {"x86_64", "amd64"}
CPUINFO = Path("/proc/cpuinfo")
FLAGS = CPUINFO.read_text() if X86 and CPUINFO.exists() else ""


@pytest.fixture(autouse=True)
def restore():
    before = kernels.isa()
    yield
    kernels.use_isa(before)


def test_tiers_contain_each_other():
    """The available tiers are the beginning of the architecture's list: no tier without those before it."""
    order = {
        "x86_64": ("portable", "sse4", "avx2", "avx512", "avx512icl"),
        "amd64": ("portable", "sse4", "avx2", "avx512", "avx512icl"),
        "aarch64": ("portable", "neon"),
        "arm64": ("portable", "neon"),
    }.get(platform.machine().lower(), ("portable",))
    found = kernels.available_isas()
    assert found[0] == "portable"
    assert found == order[: len(found)]


def test_unknown_isa():
    """A tier that does not exist is a ValueError that lists the existing ones, and nothing changes."""
    before = kernels.isa()
    for name in ("", "sse9", "Portable", "avx512icl\0"):
        with pytest.raises(ValueError, match="portable"):
            kernels.use_isa(name)
    assert kernels.isa() == before


# The tier "avx2" does without VPCLMULQDQ, and uses it where the CPU has it.
CRC32 = {
    "portable": "crc32_portable",
    "sse4": "crc32_x86_pclmulqdq",
    "avx2": "crc32_x86_vpclmulqdq_avx2" if "vpclmulqdq" in FLAGS else "crc32_x86_pclmulqdq",
    "avx512": "crc32_x86_pclmulqdq",
    "avx512icl": "crc32_x86_vpclmulqdq_avx512",
}
OTHERS = {
    "portable": "portable",
    "sse4": "portable",
    "avx2": "x86_avx2",
    "avx512": "x86_avx512",
    "avx512icl": "x86_avx512",
    "neon": "arm_neon",
}


@pytest.mark.parametrize("name", kernels.available_isas())
def test_variants(name):
    """Each tier uses the best kernels whose needs lie within it."""
    kernels.use_isa(name)
    assert kernels.isa() == name
    assert access.variant("crc32") == CRC32.get(name, access.variant("crc32"))
    for kernel in ("intblock", "ggml"):
        assert access.variant(kernel) == f"{kernel}_{OTHERS[name]}"
    narrow = OTHERS[name].replace("avx512", "avx2")  # wider registers gain little
    for kernel in ("f16_to_f32", "bf16_to_f32") + ("fnv1a32",) * X86:
        assert access.variant(kernel) == f"{kernel}_{narrow}"


def test_the_best_is_chosen_at_import():
    """A fresh process uses the last of the available tiers."""
    code = "from weightmap import kernels; print(kernels.isa(), kernels.available_isas()[-1])"
    best, last = run_child(code).stdout.split()
    assert best == last


@pytest.mark.skipif(not CPUINFO.exists() or not X86, reason="needs Linux on x86")
def test_agrees_with_the_kernel():
    """The CPU's tiers agree with the features that Linux lists."""
    line = next(line for line in CPUINFO.read_text().splitlines() if line.startswith("flags"))
    flags = set(line.split(":")[1].split())
    needs = {
        "sse4": {"ssse3", "sse4_1", "sse4_2", "pclmulqdq"},
        "avx2": {"avx2", "bmi2", "fma", "f16c"},
        "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
        "avx512icl": {"vpclmulqdq"},
    }
    expected = ["portable"]
    for name, features in needs.items():
        if not features <= flags:
            break
        expected.append(name)
    assert list(kernels.available_isas()) == expected


@pytest.mark.slow
@pytest.mark.parametrize("emulated", [False, True])
def test_c_driver(once, tmp_path, emulated):
    """The test driver in C, the same that runs under an arm64 emulator, passes on this machine.

    Its inputs end where their allocations end; `make sanitize-test` runs it under the sanitisers. The emulation
    replaces VPCLMULQDQ, so CPUs without it test the rest of its kernels.
    """
    program = tmp_path / "kernels_test"
    compiled(once, "kernels_test", program, emulated=emulated)
    done = subprocess.run([str(program)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("all checks passed\n")
