"""A folder of Hugging Face as GGUF, beside llama.cpp's own converter and quantiser.

WEIGHTMAP_LLAMA names the environment of ``make llama-test``, which has both.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.llama import models

from workflows import pretrained
from workflows.common import Absent, need

# llama.cpp's converter knows tokenizers by a hash, and not the one of this model.
CONVERT = """
import os, runpy, sys
home = os.path.dirname(sys.argv[1])
sys.path.insert(0, home)
import conversion.base
conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "llama-bpe"
sys.argv[:1] = []
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# llama.cpp's converter does not write it: its quantiser makes it of an f16.
QUANTISE = """
import sys, llama_cpp
asked = llama_cpp.llama_model_quantize_default_params()
asked.ftype, asked.nthread = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M, 2
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), asked))
"""
TYPES = ("f16", "q8_0", "q4_k_m")


def write(folder: Path, mib: int) -> None:
    """Write a Llama with a tokenizer of bytes."""
    pretrained.write(folder, mib)
    if (folder / "model").exists():
        for name, content in {"tokenizer.json": models.tokenizer(), "tokenizer_config.json": models.SETTINGS}.items():
            (folder / "model" / name).write_text(json.dumps(content), encoding="utf-8")
    (folder / "convert.py").write_text(CONVERT, encoding="utf-8")


def ours(kind: str, folder: Path) -> list[str]:
    """Return our command."""
    need("transformers")
    asked = ["--dtype", "float16"] if kind == "f16" else ["--quantize", kind]
    return [sys.executable, "-m", "weightmap", "convert", str(folder / "model"), str(folder / "ours.gguf"), *asked]


def theirs(kind: str, folder: Path, *, patched: bool = False) -> list[str]:
    """Return llama.cpp's command, perhaps under ours."""
    if "WEIGHTMAP_LLAMA" not in os.environ:
        raise Absent("WEIGHTMAP_LLAMA names no environment")
    home = Path(os.environ["WEIGHTMAP_LLAMA"])
    python, target = str(home / "bin" / "python"), str(folder / "theirs.gguf")
    under = ["-m", "weightmap.compat.gguf"] if patched else []
    script, model = str(home / "llama.cpp" / "convert_hf_to_gguf.py"), str(folder / "model")
    first = "f16" if kind == "q4_k_m" else kind
    paths = os.pathsep.join((str(home / "llama.cpp" / "gguf-py"), os.environ.get("PYTHONPATH", "")))  # the script's own
    convert = ["env", f"PYTHONPATH={paths}", python, *under, str(folder / "convert.py"), script, model]
    convert += ["--outtype", first, "--outfile", target]
    if first == kind:
        return convert
    quantise = [python, "-c", QUANTISE, target, f"{target}.{kind}"]
    return ["sh", "-c", f"{shlex.join(convert)} && {shlex.join(quantise)}"]


WORKFLOWS: dict[str, dict[str, Any]] = {
    f"Hugging Face to GGUF {kind}": {
        "weightmap convert": partial(ours, kind),
        **({} if kind == "q4_k_m" else {"weightmap, llama.cpp's converter": partial(theirs, kind, patched=True)}),
        "llama.cpp": partial(theirs, kind),
    }
    for kind in TYPES
}
