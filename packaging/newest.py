"""Run our tests beside the newest libraries, each with its own; each failure is one line with version and test."""

import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

# The tests of a library, as arguments of pytest.
TESTS = {
    "safetensors": "tests/compat --ignore=tests/compat/test_clients.py",
    "huggingface_hub": "tests/hub/test_hub.py",
    "transformers": "tests/compat/test_clients.py tests/torch/test_experts.py -k 'not (accel or peft or diffus)'",
    "accelerate": "tests/compat/test_clients.py -k accelerate",
    "peft": "tests/compat/test_clients.py -k peft",
    "diffusers": "tests/compat/test_clients.py -k diffusers",
    "compressed-tensors": "tests/checkpoints/test_quantised.py",
    "gguf": "tests/compat tests/conversion tests/core/formats/gguf tests/core/quant/test_ggml.py -k gguf",
    "onnx": "tests/core/formats/onnx",
    "torch": "tests/torch tests/dlpack tests/core/formats/torch fuzz/pickles --ignore=tests/torch/test_experts.py",
}
_OPT_IN = ("CLIENTS", "EXPERTS", "QUANTISED", "TORCH")


def main(suite: str) -> int:
    """Return 1 if a test has failed; `suite` is the folder of safetensors' own tests."""
    environment = {**os.environ, **{f"WEIGHTMAP_{name}": "1" for name in _OPT_IN}}
    environment["WEIGHTMAP_SAFETENSORS_SUITE"] = str(Path(suite).resolve())
    failed = 0
    for library, tests in TESTS.items():
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--tb=no",
            "-rfE",
            "-p",
            "no:cacheprovider",
            *shlex.split(tests),
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        lines = re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE)
        outcome = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]
        if done.returncode and not lines:
            lines = [outcome]
        print(*(f"{library} {version(library)}: {line}" for line in lines or [outcome]), sep="\n", flush=True)
        failed += len(lines)
    print(f"{datetime.now(UTC):%Y-%m-%d}:", ", ".join(f"{library} {version(library)}" for library in TESTS))
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
