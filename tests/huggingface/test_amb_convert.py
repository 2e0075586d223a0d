"""From a Hugging Face model directory to AMB: metadata, configuration and tokenizer of each kind."""

import json

import numpy as np
import pytest
from tests.builders import Tensor, normal
from tests.builders import safetensors as st

import weightmap as wm

BERT = {
    "_name_or_path": "somebody/tiny-bert",
    "model_type": "bert",
    "vocab_size": 7,
    "hidden_size": 4,
    "pad_token_id": 0,
}
BERT |= {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 16}
BERT |= {"type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12}
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b\x85"]
LLAMA = {"model_type": "llama", "vocab_size": 6, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA |= {"num_key_value_heads": 2, "max_position_embeddings": 32, "hidden_act": "silu", "rms_norm_eps": 1e-5}
LLAMA |= {"rope_theta": 500000.0, "rope_scaling": None, "bos_token_id": 1, "eos_token_id": [2, 3]}
VOCAB = {"a": 0, "b": 1, "ab": 2, "é": 3}
BPE = {"model": {"type": "BPE", "vocab": VOCAB, "merges": ["a b"]}, "added_tokens": [{"id": 4, "content": "<s>"}]}


@pytest.fixture
def folder(tmp_path):
    def make(files, tensors=None):
        home = tmp_path / "model"
        home.mkdir()
        (home / "model.safetensors").write_bytes(st.build(tensors or {"w": normal((2, 2))}))
        for name, content in files.items():
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            (home / name).write_bytes(raw)
        return home

    return make


def converted(home):
    target = home.with_suffix(".amb")
    report = wm.convert(home, target)
    return report, wm.open(target, verify="full")


def test_a_bert_directory(folder, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    counts = np.arange(16, dtype="<i8")
    tensors = {
        "embeddings.position_ids": Tensor("int64", (1, 16), counts.tobytes()),
        "embeddings.word_embeddings.weight": normal((7, 4)),
    }
    report, f = converted(folder({"config.json": BERT, "vocab.txt": "\n".join(TOKENS).encode()}, tensors))
    made = {"version": "1.0.0", "created": "1970-01-01T00:00:00Z"}
    assert f.metadata == {"name": "tiny-bert", "family": "bert", "creator": "somebody", **made}
    config = {"architecture": "bert", "n_vocab": 7, "n_embd": 4, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2}
    config |= {"max_seq_len": 16, "activation_fn": "gelu", "intermediate_size": 8, "layer_norm_eps": 1e-12}
    for key, value in (config | {"type_vocab_size": 2}).items():
        assert f.config[key] == value
    assert not any("rope" in key for key in f.config)
    assert f.tokenizer.type == 2
    assert f.tokenizer.special_ids == {"bos": 2, "eos": 3, "pad": 0, "unk": 1, "mask": 4}
    assert f.tokenizer.payload == "".join(token + "\n" for token in TOKENS).encode()
    assert f.tokenizer.tokens() == TOKENS
    assert list(f) == ["embeddings.word_embeddings.weight"]
    [(name, reason)] = report.dropped
    assert name == "embeddings.position_ids"
    assert "int64" in reason
    assert report.warnings == (f"dropped {name!r}: {reason}",)
    assert f.verify().warnings == ()


def test_wordpiece_of_a_tokenizer_json(folder):
    vocab = {token: i for i, token in reversed(list(enumerate(["<p>", "[UNK]", "x", "y"])))}
    files = {
        "config.json": BERT,
        "tokenizer.json": {"model": {"type": "WordPiece", "vocab": vocab}},
        "special_tokens_map.json": {"pad_token": "<p>", "cls_token": {"content": "x"}, "sep_token": "absent"},
    }
    _, f = converted(folder(files))
    assert f.tokenizer.tokens() == ["<p>", "[UNK]", "x", "y"]
    assert f.tokenizer.special_ids == {"pad": 0, "bos": 2, "unk": 1}


@pytest.mark.parametrize("merges", [["a b"], [["a", "b"]]])
def test_bpe_of_a_tokenizer_json(folder, merges):
    full = {**BPE, "model": {**BPE["model"], "merges": merges}}
    files = {"config.json": LLAMA, "tokenizer.json": full, "tokenizer_config.json": {"bos_token": "<s>"}}
    _, f = converted(folder(files))
    assert f.tokenizer.type == 0
    assert json.loads(f.tokenizer.payload) == {"merges": [["a", "b"]], "vocab": {**VOCAB, "<s>": 4}}
    assert f.tokenizer.special_ids == {"bos": 4, "eos": 2}
    wanted = {"is_rope": True, "rope_freq_base": 5e5, "rope_scaling": 1.0, "n_kv_heads": 2, "activation_fn": "silu"}
    assert {key: f.config[key] for key in wanted} == wanted


def test_bpe_of_two_files(folder):
    files = {"config.json": LLAMA, "vocab.json": VOCAB, "merges.txt": b"#version: 0.2\na b\r\n"}
    _, f = converted(folder(files))
    assert f.tokenizer.type == 0
    assert json.loads(f.tokenizer.payload) == {"merges": [["a", "b"]], "vocab": VOCAB}


def test_sentencepiece_is_the_serialised_model(folder):
    model = b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02"
    added = {"0": {"content": "<unk>"}, "1": {"content": "<s>"}}
    settings = {"added_tokens_decoder": added, "unk_token": "<unk>"}
    files = {"config.json": LLAMA, "tokenizer.model": model, "tokenizer.json": BPE, "tokenizer_config.json": settings}
    _, f = converted(folder(files))
    assert f.tokenizer.type == 1
    assert f.tokenizer.payload == model
    assert f.tokenizer.special_ids == {"bos": 1, "eos": 2, "unk": 0}


def test_other_tokenizers_go_along_as_they_are(folder):
    full = {"model": {"type": "Unigram", "vocab": [["a", -1.5]]}}
    _, f = converted(folder({"config.json": LLAMA, "tokenizer.json": full}))
    assert f.tokenizer.type == 3
    assert json.loads(f.tokenizer.payload) == full


def test_a_directory_of_nothing_but_tensors(folder):
    report, f = converted(folder({}))
    assert f.metadata == {}
    assert f.config == {}
    assert f.tokenizer is None
    assert report.warnings == ()


DAMAGED = [
    ("tokenizer.json", b"{"),
    ("tokenizer_config.json", b"[]"),
    ("merges.txt", b"\xff"),
    ("merges.txt", b"a b c\n"),
]


@pytest.mark.parametrize(("name", "content"), DAMAGED)
def test_damaged_files_of_a_tokenizer(folder, name, content):
    home = folder({"config.json": LLAMA, "vocab.json": VOCAB, name: content})
    with pytest.raises(wm.FormatError, match=name):
        wm.convert(home, home.with_suffix(".amb"))
    assert not home.with_suffix(".amb").exists()


@pytest.mark.parametrize(("target", "name"), [("x.amb", "tokenizer.json"), ("x.weights", "vocab.txt")])
def test_links_out_of_a_strangers_directory(folder, tmp_path, target, name):
    """Their targets do not go into the new file, which may be published; links within the directory count as files."""
    home = folder({"config.json": BERT, "inner": "tokens"})
    (tmp_path / "secret").write_text('{"key": 1}')
    (home / name).symlink_to("../secret")
    with pytest.raises(wm.FormatError, match=rf"model/{name}: where the link leads, expected a file below its dire"):
        wm.convert(home, tmp_path / target)
    assert not (tmp_path / target).exists()
    (home / name).unlink()
    (home / name).symlink_to("config.json")
    wm.convert(home, tmp_path / target)
