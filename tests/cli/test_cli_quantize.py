"""The command line on quantised tensors: quantize, convert --quantize, and the other commands on what these make."""

import json
import math
import struct

import numpy as np
import pytest
from tests.builders import amb, normal, tensor
from tests.builders import safetensors as st
from tests.support import listing

import weightmap as wm

MODEL = {
    "embeddings.word.weight": normal((50, 16), 1),
    "layer.weight": normal((32, 16), 2),
    "layer.bias": normal((32,), 3),
    "head.weight": normal((4, 16), 4, "float16"),
}


@pytest.fixture
def model(put):
    return put(st.build(MODEL, {"format": "pt"}), "model.safetensors")


@pytest.fixture
def quantised(tmp_path):
    """An AMB file with dense, blocked, adaptive and plain tensors, a configuration and a tokenizer."""
    path = tmp_path / "mixed.amb"
    values = np.random.default_rng(5).normal(size=(8, 16)).astype(np.float32)
    tensors = {
        "dense": values,
        "blocks": wm.quantize(values, "int5_block", block_size=16),
        "mixed": wm.quantize(values, "adaptive", block_size=32, bits=8, scale_type="fp32"),
        "bytes": wm.quantize(values, "int8", scale_type="fp32"),
    }
    tokens = {"type": 2, "special_ids": {"pad": 0, "unk": 1}, "payload": b"[PAD]\n[UNK]\nword\n"}
    wm.save(path, tensors, metadata={"name": "tiny"}, config={"architecture": "bert", "n_vocab": 3}, tokenizer=tokens)
    return path


@pytest.mark.parametrize("scheme", ["int8", "int4", "int5", "int4_block", "int5_block", "adaptive"])
def test_the_command_quantize_writes_the_same_file_as_the_library(model, run, tmp_path, scheme):
    status, out, err = run("quantize", model, tmp_path / "q.amb", "--scheme", scheme)
    assert (status, err) == (0, "")
    wm.convert(model, tmp_path / "same.amb", quantize=scheme)
    assert (tmp_path / "q.amb").read_bytes() == (tmp_path / "same.amb").read_bytes()
    assert "layer.weight" in out
    assert "head.weight" in out
    assert "layer.bias" not in out
    assert "embeddings" not in out
    assert f"quantised to {scheme}: 2 of 4 tensors" in out


def test_the_json_report(model, run, tmp_path):
    status, out, _ = run("quantize", model, tmp_path / "q.amb", "--scheme", "int4_block", "--block-size", 16, "--json")
    document = json.loads(out)
    assert (status, document["schema"], document["command"], document["scheme"]) == (0, 1, "quantize", "int4_block")
    assert (document["src"], document["dst"]) == (str(model), str(tmp_path / "q.amb"))
    assert document["nbytes_before"] == model.stat().st_size
    assert document["nbytes"] == (tmp_path / "q.amb").stat().st_size
    assert (document["tensors"], document["format"]) == (4, "amb")
    with wm.open(tmp_path / "q.amb") as file:
        errors, entries = [], {entry["name"]: entry for entry in document["quantized"]}
        assert list(entries) == ["layer.weight", "head.weight"]
        for name, entry in entries.items():
            error = np.asarray(file[name], np.float64) - MODEL[name].array
            errors.append(error.reshape(-1))
            assert entry["shape"] == list(error.shape)
            assert (entry["nbytes_before"], entry["nbytes"]) == (len(MODEL[name].data), error.size // 16 * 10)
            assert entry["bits_per_weight"] == 5
            assert entry["rmse"] == pytest.approx(math.sqrt(np.square(error).mean()), rel=1e-6)
    every = np.concatenate(errors)
    assert document["total"] == {
        "tensors": 2,
        "elements": every.size,
        "nbytes_before": 32 * 16 * 4 + 4 * 16 * 2,
        "nbytes": every.size // 16 * 10,
        "bits_per_weight": 5,
        "rmse": pytest.approx(math.sqrt(np.square(every).mean()), rel=1e-6),
    }


def test_the_text_report_has_the_numbers_of_the_json_report(model, run, tmp_path):
    arguments = ["quantize", model, tmp_path / "q.amb", "--scheme", "int5_block"]
    document, text = json.loads(run(*arguments, "--json")[1]), run(*arguments)[1]
    lines = text.splitlines()
    for entry in document["quantized"]:
        [line] = [line for line in lines if line.startswith(entry["name"])]
        assert line.split()[-3:] == ["5.500", f"{entry['rmse']:.3e}", f"{entry['relative_error']:.4f}"]
    total = document["total"]
    [line] = [line for line in lines if line.startswith("quantised to")]
    assert f"{total['bits_per_weight']:.3f} bits per weight, RMSE {total['rmse']:.3e}" in line
    assert f"{document['nbytes_before']:,} bytes" in lines[-1]
    assert f"{document['nbytes']:,} bytes" in lines[-1]


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("quantize", "", "--scheme"),
        ("quantize", "--scheme int3", "--scheme is 'int3', expected one of int8, "),
        ("quantize", "--scheme Q4_K_M", "adaptive; the nearest is int4_block\n"),
        ("quantize", "--scheme Q4-K", "AMB has no scheme q4_k: it is written with int8, "),
        ("quantize", "--format GGUF --scheme q4_0", "--format is 'GGUF', expected one of amb, "),
        ("quantize", "--scheme int5_block --block-size 12", "--block-size for 5-bit codes is 12, expected"),
        ("quantize", "--scheme int4_block --bits 6", "--bits is for adaptive: "),
        ("quantize", "--scheme adaptive --bits nan", "weightmap: --bits is nan"),
        ("quantize", "--scheme q8_0 --scale-type fp32", "--scale-type of q8_0 is 'fp32', expected"),
        ("quantize", "--scheme int8 --dtype int32", "int32"),
        ("convert", "--block-size 32", "--block-size: only with --quantize"),
        ("convert", "--bits 5 --threads 2", "--bits, --threads: only with --quantize"),
        ("convert", "--quantize q4_K_M", "--quantize is 'q4_K_M', expected one of int8, "),
    ],
)
def test_wrong_options_are_usage_errors(model, run, tmp_path, command, options, said):
    status, out, err = run(command, model, tmp_path / "q.amb", *options.split())
    assert (status, out) == (2, "")
    assert said in err
    assert listing(tmp_path) == ["model.safetensors"]


def test_what_is_no_number_is_named_and_3(put, run, tmp_path):
    values = np.ones((4, 8), np.float32)
    values[2, 1] = np.nan
    path = put(st.build({"w": tensor(values)}), "nan.safetensors")
    status, _, err = run("quantize", path, tmp_path / "q.amb", "--scheme", "int4_block")
    assert status == 3
    assert "'w'" in err
    assert "element 17" in err
    assert listing(tmp_path) == ["nan.safetensors"]


def test_convert_quantises_on_the_way(model, run, tmp_path):
    """`convert --quantize` gives the file that `quantize` gives; its globs choose tensors, not which are quantised."""
    options = ["--block-size", "16", "--scale-type", "fp32", "--threads", "1"]
    status, out, _ = run("convert", model, tmp_path / "a.amb", "--quantize", "int4_block", *options)
    assert status == 0
    assert "quantised to int4_block: 2 of 4 tensors" in out
    assert run("quantize", model, tmp_path / "b.amb", "--scheme", "int4_block", *options)[0] == 0
    assert (tmp_path / "a.amb").read_bytes() == (tmp_path / "b.amb").read_bytes()
    arguments = ["convert", model, tmp_path / "c.amb", "--quantize", "int8", "--include", "layer.*", "--json"]
    document = json.loads(run(*arguments)[1])
    assert document["tensors"] == 2
    assert [entry["name"] for entry in document["quantized"]] == ["layer.weight"]
    assert document["quantized_total"]["tensors"] == 1
    assert "quantized" not in json.loads(run("convert", model, tmp_path / "d.amb", "--json")[1])


def test_inspect_shows_how_tensors_are_quantised(quantised, run):
    status, out, _ = run("inspect", quantised)
    rows = {line.split()[0]: line.split() for line in reversed(out.splitlines()) if line.strip()}
    assert status == 0
    assert rows["name"][-3:] == ["block", "scales", "bits"]
    assert rows["blocks"][1] == "int5_block"
    assert rows["blocks"][-3:] == ["16", "fp16", "6.000"]
    assert rows["mixed"][-3:-1] == ["32", "fp32"]
    assert rows["bytes"][-2:] == ["fp32", "8.250"]
    line = run("inspect", quantised, "--include", "blocks", "--weights")[1].splitlines()[1]
    assert line.endswith(" elements of 6.000 bits")
    assert rows["dense"][1:4] == ["float32", "[8,", "16]"]
    assert "tokenizer   type 2 (WordPiece), 17 bytes; pad 0, unk 1" in out
    assert rows["architecture"] == ["architecture", "bert"]
    assert rows["quant"][0] == "quant"


def test_inspect_json_on_quantised_tensors(quantised, run):
    document = json.loads(run("inspect", quantised, "--json")[1])
    entries = {entry["name"]: entry for entry in document["tensors"]}
    ways = {name: [entry.get(key) for key in ("scheme", "block_size", "scale_type")] for name, entry in entries.items()}
    assert ways == {
        "dense": [None, None, None],
        "blocks": ["int5_block", 16, "fp16"],
        "mixed": ["adaptive", 32, "fp32"],
        "bytes": ["int8", None, "fp32"],
    }
    assert "scheme" not in entries["dense"]
    with wm.open(quantised) as file:
        for name in ("blocks", "mixed", "bytes"):
            assert entries[name]["bits_per_weight"] == file[name].bits_per_weight
    told = {"type": 2, "kind": "WordPiece", "special_ids": {"pad": 0, "unk": 1}, "payload_nbytes": 17}
    assert document["tokenizer"] == told
    assert document["config"]["n_vocab"] == 3
    assert document["totals"]["adaptive"]["tensors"] == 1


def test_inspect_shows_a_file_whose_mask_is_damaged(put, run):
    """`inspect` lists the other tensors beside one whose mask contradicts its data; `verify` reports the defect."""
    good = amb.dense("good", normal((2, 2)))
    payload = bytes([0b11]) + struct.pack("<e", 1) + bytes(4)  # no block is of kind 3
    bad = amb.Record("bad", (8,), amb.ADAPTIVE, struct.pack("<BHB", 6, 8, 1) + payload)
    path = put(amb.build([good, bad], b"{}", b"{}"), "damaged.amb")
    status, out, _ = run("inspect", path)
    assert status == 0
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("bad")] == ["damaged"]
    assert any(line.startswith("good") for line in out.splitlines())
    [_, entry] = json.loads(run("inspect", path, "--json")[1])["tensors"]
    assert entry["scheme"] == "adaptive"
    assert "mask" in entry["problem"] or "kind" in entry["problem"]
    status, out, err = run("verify", path)
    assert status == 3
    assert "failed" in out + err
