"""Models of Hugging Face as GGUF under llama.cpp's names: tensors, keys and tokenizers, and refusals."""

import copy
import json
import random
from pathlib import Path

import numpy as np
import pytest
from tests.checkpoints import checkpoints

import weightmap as wm
from weightmap.cli import main
from weightmap.llama import translating

from . import models
from .models import CONFIGS, config_of, expected, tensors_of, write

TRUTH = Path(__file__).parent / "groundtruth"
GEMMA_MODEL = (TRUTH / "gemma2" / "tokenizer.model").read_bytes()
# Keys of the reference that equal llama.cpp's defaults.
OPTIONAL = {
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.ggml.add_eos_token": False,
    "tokenizer.ggml.add_sep_token": False,
}
ULPS = 2


def values(metadata):
    """Key-values as plain Python."""
    return {
        key: value if isinstance(value, (str, int, float, bool)) else list(value) for key, value in metadata.items()
    }


def types(path):
    """The type of each key-value as stored, read from the bytes by the builder of test files."""
    gguf = pytest.importorskip("gguf")
    return {name: field.types for name, field in gguf.GGUFReader(path).fields.items() if not name.startswith("GGUF.")}


def files_of(name):
    """Tokenizer of a model of this architecture."""
    if name == "Gemma2ForCausalLM":
        return {"tokenizer.model": GEMMA_MODEL}
    return None


@pytest.mark.parametrize(
    ("model", "options", "reference"),
    [
        ("llama_gqa", {}, "llama_gqa.gguf"),
        ("llama_gqa", {"dtype": "fp16"}, "llama_gqa.f16.gguf"),
        ("gemma2", {}, "gemma2.gguf"),
        ("qwen3moe", {}, "qwen3moe.gguf"),
    ],
)
def test_the_file_of_the_reference_converter(tmp_path, model, options, reference):
    report = wm.convert(TRUTH / model, tmp_path / "x.gguf", **options)
    assert report.warnings == ()
    with wm.open(tmp_path / "x.gguf") as ours, wm.open(TRUTH / reference) as theirs:
        assert set(ours) == set(theirs)
        for name in theirs:
            assert (ours[name].dtype, ours[name].shape) == (theirs[name].dtype, theirs[name].shape), name
            if name == "rope_freqs.weight":
                np.testing.assert_array_max_ulp(ours[name], theirs[name], ULPS)
            else:
                assert ours[name].tobytes() == theirs[name].tobytes(), name
        found, wanted = values(ours.metadata), values(theirs.metadata)
        found.pop("general.name")
        wanted.pop("general.name")
        assert found.items() <= wanted.items()
        assert {key: value for key, value in wanted.items() if key not in found}.items() <= OPTIONAL.items()
    of_ours, of_theirs = types(tmp_path / "x.gguf"), types(TRUTH / reference)
    assert {key: of_theirs[key] for key in of_ours} == of_ours


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_tensors_of_every_architecture(tmp_path, name, shards):
    tensors = tensors_of(name)
    source = write(tmp_path / "model", config_of(name), tensors, files=files_of(name), shards=shards)
    wm.convert(source, tmp_path / "x.gguf", names="llama.cpp")
    with wm.open(tmp_path / "x.gguf") as f:
        wanted = expected(name, tensors)
        assert set(f) == set(wanted)
        for key, array in wanted.items():
            assert f[key].dtype == array.dtype, key
            assert f[key].tobytes() == array.tobytes(), key
        assert f.metadata["general.architecture"] == models.ARCHITECTURE[name]
        assert len(f.vocab) == models.VOCAB


@pytest.mark.parametrize("name", CONFIGS)
def test_no_number_of_heads_of_keys_is_that_of_all_heads(tmp_path, name):
    """In transformers and llama.cpp; a number that is left out is another one, but for Llama."""
    tensors = tensors_of(name)
    tensors |= {key: np.concatenate([one, one]) for key, one in tensors.items() if ".k_proj" in key or ".v_proj" in key}
    source = write(tmp_path / "model", config_of(name, num_key_value_heads=None), tensors, files=files_of(name))
    wm.convert(source, tmp_path / "x.gguf", names="llama.cpp")
    with wm.open(tmp_path / "x.gguf") as f:
        assert f.metadata[f"{models.ARCHITECTURE[name]}.attention.head_count_kv"] == models.HEADS


@pytest.mark.parametrize("name", CONFIGS)
def test_a_package_gguf_that_lists_more_tensors(tmp_path, monkeypatch, name):
    gguf = pytest.importorskip("gguf")
    number = next(number for number, title in gguf.MODEL_ARCH_NAMES.items() if title == models.ARCHITECTURE[name])
    more = [gguf.MODEL_TENSOR.ATTN_QKV, gguf.MODEL_TENSOR.ATTN_SINKS, gguf.MODEL_TENSOR.ATTN_NORM_2]
    monkeypatch.setitem(gguf.MODEL_TENSORS, number, [*gguf.MODEL_TENSORS[number], *more])
    source = write(tmp_path / "model", config_of(name), tensors_of(name), files=files_of(name))
    wm.convert(source, tmp_path / "x.gguf")
    assert set(wm.open(tmp_path / "x.gguf")) == set(expected(name, tensors_of(name)))


def test_names_that_are_kept_and_those_that_are_not_known(tmp_path, capsys):
    source = write(tmp_path / "model", config_of("Qwen3ForCausalLM"), tensors_of("Qwen3ForCausalLM"))
    wm.convert(source, tmp_path / "kept.gguf", names="keep")
    assert "model.norm.weight" in wm.open(tmp_path / "kept.gguf")
    other = write(
        tmp_path / "other",
        config_of("LlamaForCausalLM") | {"architectures": ["OtherForCausalLM"]},
        tensors_of("LlamaForCausalLM"),
    )
    report = wm.convert(other, tmp_path / "other.gguf")
    assert any("llama.cpp will not load this file" in line for line in report.warnings)
    assert "model.norm.weight" in wm.open(tmp_path / "other.gguf")
    with pytest.raises(wm.EncodeError, match=r"'OtherForCausalLM'.*expected one of Llama.*names='keep'"):
        wm.convert(other, tmp_path / "no.gguf", names="llama.cpp")
    assert main(["convert", str(other), str(tmp_path / "no.gguf"), "--names", "llama.cpp"]) != 0
    assert "--names keep keeps the names of the source" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"expected one of auto, keep, llama\.cpp"):
        wm.convert(source, tmp_path / "no.gguf", names="hf")
    with pytest.raises(wm.EncodeError, match=r"llama\.cpp reads GGUF, and the target is safetensors"):
        wm.convert(source, tmp_path / "no.safetensors", names="llama.cpp")
    wm.convert(source, tmp_path / "yes.safetensors")
    assert not (tmp_path / "no.gguf").exists()


def test_a_single_file_is_translated_when_asked_for(tmp_path):
    source = write(tmp_path / "model", config_of("Qwen3ForCausalLM"), tensors_of("Qwen3ForCausalLM"))
    wm.convert(source / "model.safetensors", tmp_path / "kept.gguf")
    wm.convert(source / "model.safetensors", tmp_path / "named.gguf", names="llama.cpp")
    wm.convert(source, tmp_path / "whole.gguf")
    assert "model.norm.weight" in wm.open(tmp_path / "kept.gguf")
    assert (tmp_path / "named.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    wm.convert(tmp_path / "whole.gguf", tmp_path / "again.gguf", names="llama.cpp")
    assert set(wm.open(tmp_path / "again.gguf")) == set(wm.open(tmp_path / "whole.gguf"))


@pytest.mark.parametrize(
    ("mixture", "values_", "down", "output", "kind"),
    [
        # llama.cpp's table for 32 layers: attention values, down projections, attention outputs.
        (
            "q4_k_m",
            {0: "q6_k", 3: "q6_k", 4: "q4_k", 6: "q6_k", 28: "q6_k", 27: "q6_k", 26: "q4_k"},
            "same",
            "q4_k",
            15,
        ),
        ("q5_k_m", {0: "q6_k", 4: "q5_k", 6: "q6_k", 31: "q6_k"}, "same", "q5_k", 17),
        ("q4_k_s", {0: "q5_k", 3: "q5_k", 4: "q4_k"}, {0: "q5_k", 3: "q5_k", 4: "q4_k"}, "q4_k", 14),
        ("q3_k_m", {0: "q5_k", 1: "q5_k", 2: "q4_k"}, {0: "q5_k", 1: "q5_k", 2: "q4_k"}, "q4_k", 12),
        ("q3_k_l", {0: "q5_k", 20: "q5_k"}, {0: "q5_k", 20: "q5_k"}, "q5_k", 13),
        ("q3_k_s", {0: "q3_k", 20: "q3_k"}, {0: "q3_k"}, "q3_k", 11),
        ("q5_k_s", {0: "q5_k"}, {0: "q5_k"}, "q5_k", 16),
    ],
)
def test_mixtures(tmp_path, mixture, values_, down, output, kind):
    config = config_of("LlamaForCausalLM", num_hidden_layers=32, hidden_size=256, intermediate_size=256, head_dim=64)
    one = {
        name.replace(".0.", ".{}."): array
        for name, array in tensors_of("LlamaForCausalLM").items()
        if ".1." not in name
    }
    sizes = dict.fromkeys((models.HIDDEN, models.INNER), 256) | {models.KV * models.HEAD: 128}
    tensors = {
        name.format(layer): np.zeros([sizes.get(n, n) for n in array.shape], models.BF16)
        for name, array in one.items()
        for layer in (range(32) if "{}" in name else [0])
    }
    source = write(tmp_path / "model", config, tensors)
    report = wm.convert(source, tmp_path / "x.gguf", quantize=mixture.upper().replace("_", "-"))
    assert report.warnings == ()
    with wm.open(tmp_path / "x.gguf") as f:

        def of(layer, part):
            return f.info(f"blk.{layer}.{part}.weight").dtype

        assert {layer: of(layer, "attn_v") for layer in values_} == values_
        down = values_ if down == "same" else down
        assert {layer: of(layer, "ffn_down") for layer in down} == down
        assert of(9, "attn_output") == output
        usual = mixture[:4]
        assert {of(9, part) for part in ("attn_q", "attn_k", "ffn_up", "ffn_gate")} == {usual}
        assert f.info("output.weight").dtype == "q6_k"
        assert f.info("token_embd.weight").dtype == usual
        assert f.metadata["general.file_type"] == kind


def quantised():
    """A Llama whose projections are quantised, and the float32 values of each."""
    tensors, decoded = tensors_of("LlamaForCausalLM"), {}
    for name in [name for name in tensors if "_proj" in name]:
        rows, columns = tensors.pop(name).shape
        stem = name.removesuffix(".weight")
        codes = checkpoints.numbers(len(tensors), (rows, columns), 16)
        scale = checkpoints.scales(len(tensors), (rows, columns // 32))
        tensors[f"{stem}.weight_packed"] = checkpoints.words(codes, 4)
        tensors[f"{stem}.weight_scale"] = scale
        tensors[f"{stem}.weight_shape"] = np.array([rows, columns], np.int64)
        decoded[name] = (codes.astype(np.float32) - 8) * np.repeat(scale, 32, axis=1).astype(np.float32)
    return tensors, decoded


def test_parameters_of_a_quantised_checkpoint(tmp_path):
    tensors, decoded = quantised()
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32},
    }
    how = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    source = write(tmp_path / "model", config_of("LlamaForCausalLM", quantization_config=how), tensors)
    with pytest.raises(wm.EncodeError, match=r"quantised checkpoint.*; f\.weights converts its parameters$"):
        wm.convert(source, tmp_path / "x.gguf")
    wm.convert(wm.open(source).weights, tmp_path / "x.gguf")
    wm.convert(wm.open(source).weights, tmp_path / "dense.gguf", dtype="fp32")
    plain = {**{name: array for name, array in tensors.items() if ".weight_" not in name}, **decoded}
    wanted = expected("LlamaForCausalLM", plain)
    with wm.open(tmp_path / "x.gguf") as f, wm.open(tmp_path / "dense.gguf") as dense:
        assert f.info("blk.0.attn_q.weight").dtype == "q4_0"
        for name, array in wanted.items():
            np.testing.assert_array_equal(np.asarray(f[name], np.float32), array.astype(np.float32), err_msg=name)
            np.testing.assert_array_equal(dense[name], array.astype(np.float32), err_msg=name)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
def test_the_report_counts_decoded_tensors_that_are_permuted_or_stacked(tmp_path, name):
    tensors = tensors_of(name)
    projections = [key for key in tensors if "_proj" in key]
    for key in projections:  # FP8, for which GGUF has no type
        tensors[key] = tensors[key].astype(checkpoints.F8)
        tensors[f"{key}_scale_inv"] = np.ones((1, 1), np.float32)
    how = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    source = write(tmp_path / "model", config_of(name, quantization_config=how), tensors)
    report = wm.convert(wm.open(source).weights, tmp_path / "x.gguf")
    said = [line for line in report.warnings if "decoded, such as" in line]
    number = 7 * models.LAYERS  # q, k, v, o, gate, up, down
    assert [line[: line.index(" decoded")] for line in said] == [f"{number} parameters"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, models.BF16])
def test_norms_of_gemma_are_sums_of_their_own_type(tmp_path, dtype):
    """As in llama.cpp's script, which adds 1 in float16 to float16, else in float32."""
    tensors = tensors_of("Gemma2ForCausalLM", dtype)
    source = write(tmp_path / "model", config_of("Gemma2ForCausalLM"), tensors, files=files_of("Gemma2ForCausalLM"))
    wm.convert(source, tmp_path / "x.gguf")
    norm = tensors["model.norm.weight"]
    wanted = norm + np.float16(1) if dtype is np.float16 else norm.astype(np.float32) + 1
    with wm.open(tmp_path / "x.gguf") as f:
        np.testing.assert_array_equal(f["output_norm.weight"], wanted.astype(np.float32), strict=True)


def test_biases_keep_negative_zeros(tmp_path):
    tensors = tensors_of("Qwen2ForCausalLM")
    tensors["model.layers.0.self_attn.v_proj.bias"][:] = -0.0
    source = write(tmp_path / "model", config_of("Qwen2ForCausalLM"), tensors)
    wm.convert(source, tmp_path / "x.gguf")
    assert np.signbit(wm.open(tmp_path / "x.gguf")["blk.0.attn_v.bias"]).all()


def test_scales_of_experts_that_are_no_numbers_are_refused(tmp_path):
    tensors = tensors_of("Qwen3MoeForCausalLM")
    for key in [key for key in tensors if key.endswith(".gate_proj.weight")]:
        tensors[key.replace(".weight", ".scale")] = np.ones(5, np.float32)
    source = write(tmp_path / "model", config_of("Qwen3MoeForCausalLM"), tensors)
    with pytest.raises(wm.EncodeError, match=r"experts of blk\.0\.ffn_gate_exps\.scale are not .*, one number each"):
        wm.convert(source, tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.parametrize("name", ["MixtralForCausalLM", "Qwen3MoeForCausalLM"])
def test_experts_of_nvfp4_keep_their_scales(tmp_path, name):
    """As llama.cpp's converter writes them: blocks of all experts, and beside them the scale of each."""
    tensors, scales = tensors_of(name), {}
    gates = [key for key in tensors if key.endswith((".gate_proj.weight", ".w1.weight"))]
    for number, key in enumerate(gates):
        rows, columns = tensors[key].shape
        codes = checkpoints.numbers(number, (rows, columns // 2), 256).astype(np.uint8)
        exponents = checkpoints.numbers(number, (rows, columns // 16), 64) + 32
        scales[key] = np.float32(2.0 ** -(number % 7) / 3)
        pieces = {"": codes, "_scale": exponents.astype(np.uint8).view(checkpoints.F8), "_scale_2": scales[key]}
        tensors |= {f"{key}{ending}": array for ending, array in pieces.items()}
    how = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    source = write(tmp_path / "model", config_of(name, quantization_config=how), tensors)
    wm.convert(wm.open(source).weights, tmp_path / "x.gguf")
    wm.convert(wm.open(source).weights, tmp_path / "dense.gguf", dtype="fp32")
    with wm.open(tmp_path / "x.gguf") as f, wm.open(tmp_path / "dense.gguf") as dense:
        for layer in range(models.LAYERS):
            stem = f"blk.{layer}.ffn_gate_exps"
            ordered = sorted(
                (key for key in gates if f"layers.{layer}." in key), key=lambda key: int(key.split(".")[5])
            )
            assert f.info(f"{stem}.weight").dtype == "nvfp4"
            assert f[f"{stem}.scale"].tolist() == [scales[key] for key in ordered]
            got = f[f"{stem}.weight"].dequantize() * f[f"{stem}.scale"][:, None, None]
            np.testing.assert_allclose(got, dense[f"{stem}.weight"], rtol=1e-6)


def test_scales_of_the_cache_are_left_out_and_named(tmp_path):
    """As ModelOpt and llm-compressor write them beside k_proj and v_proj, or in self_attn."""
    tensors = tensors_of("LlamaForCausalLM")
    names = [f"model.layers.{layer}.self_attn.{part}" for layer in (0, 1) for part in ("k_proj.k_scale", "v_scale")]
    source = write(tmp_path / "model", config_of("LlamaForCausalLM"), tensors | dict.fromkeys(names, np.float32(0.5)))
    report = wm.convert(source, tmp_path / "x.gguf")
    assert f"llama.cpp has no place for 4 scales such as '{names[0]}'" in report.warnings
    with wm.open(tmp_path / "x.gguf") as f:
        assert f.keys() == expected("LlamaForCausalLM", tensors).keys()


def test_byte_fallback_gets_the_scores_of_its_merges(tmp_path):
    files = {"tokenizer.json": models.fallback(), "tokenizer_config.json": {"bos_token": "<s>"}}
    source = write(tmp_path / "model", config_of("LlamaForCausalLM"), tensors_of("LlamaForCausalLM"), files=files)
    wm.convert(source, tmp_path / "x.gguf")
    metadata = wm.open(tmp_path / "x.gguf").metadata
    tokens = list(metadata["tokenizer.ggml.tokens"])
    scores = dict(zip(tokens, metadata["tokenizer.ggml.scores"].tolist(), strict=True))
    kinds = dict(zip(tokens, metadata["tokenizer.ggml.token_type"].tolist(), strict=True))
    assert metadata["tokenizer.ggml.model"] == "llama"
    assert (scores["he"], scores["\u2581he"]) == (-1.0, -2.0)
    assert {scores[token] for token in ("<s>", "<0x41>", "h")} == {-1000.0}
    assert (kinds["<s>"], kinds["<0x41>"], kinds["he"], kinds[f"[PAD{models.VOCAB - 1}]"]) == (3, 6, 1, 5)
    assert "tokenizer.ggml.add_space_prefix" not in metadata  # llama.cpp adds one
    files["tokenizer.json"] = models.fallback(
        normalizer=None, pre_tokenizer={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never"}
    )
    source = write(tmp_path / "model", config_of("LlamaForCausalLM"), tensors_of("LlamaForCausalLM"), files=files)
    wm.convert(source, tmp_path / "x.gguf")
    assert wm.open(tmp_path / "x.gguf").metadata["tokenizer.ggml.add_space_prefix"] is False


def test_tokens_types_and_ids(tmp_path):
    source = write(tmp_path / "model", config_of("Qwen3ForCausalLM", eos_token_id=5), tensors_of("Qwen3ForCausalLM"))
    wm.convert(source, tmp_path / "x.gguf")
    with wm.open(tmp_path / "x.gguf") as f:
        kinds = f.metadata["tokenizer.ggml.token_type"].tolist()
        at = f.vocab.index
        assert [kinds[at(token)] for token in ("<|begin|>", " tool", "he", "[PAD300]")] == [3, 4, 1, 5]
        assert f.vocab.special_ids == {"bos": at("<|begin|>"), "eos": at("<|end|>")}
        assert list(f.metadata["tokenizer.ggml.merges"]) == ["h e", "l l", "he ll"]
        assert f.metadata["tokenizer.chat_template"] == "{{ messages }}"
        assert f.metadata["tokenizer.ggml.pre"] == "llama-bpe"


def _message(number, *fields):
    """A message of protobuf within another one, by its number; its fields are numbers below 128."""
    content = b"".join(
        bytes([key << 3, value] if key < 16 else [key << 3 & 127 | 128, key >> 4, value]) for key, value in fields
    )
    return bytes([number << 3 | 2, len(content)]) + content


def test_a_model_of_sentencepiece_without_a_blank_in_front(tmp_path):
    # Repeated messages merge: the last value counts.
    for adds, expected_ in ((1, None), (0, False)):
        files = {"tokenizer.model": GEMMA_MODEL + _message(3, (3, adds))}
        source = write(tmp_path / "model", config_of("LlamaForCausalLM"), tensors_of("LlamaForCausalLM"), files=files)
        wm.convert(source, tmp_path / "x.gguf")
        assert wm.open(tmp_path / "x.gguf").metadata.get("tokenizer.ggml.add_space_prefix") is expected_


@pytest.mark.parametrize(
    ("addition", "said"),
    [
        (_message(2, (3, 1)), "tokenizer.model has the model_type UNIGRAM, expected BPE"),
        (_message(2, (3, 3)), "tokenizer.model has the model_type WORD, expected BPE"),
        (_message(2, (24, 1)), "tokenizer.model has the treat_whitespace_as_suffix True, expected False"),
        (_message(3, (4, 1)), "tokenizer.model has the remove_extra_whitespaces True, expected False"),
        (_message(3, (5, 0)), "tokenizer.model has the escape_whitespaces False, expected True"),
        (None, "tokenizer.model has the normalization_rule_name 'nmt_nfkc' with a table, expected identity"),
    ],
)
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Gemma2ForCausalLM"])
def test_what_sentencepiece_does_with_a_text_and_llama_cpp_does_not(tmp_path, name, addition, said):
    if addition is None:
        normalizer = pytest.importorskip("sentencepiece").SentencePieceNormalizer(rule_name="nmt_nfkc")
        addition = normalizer.serialized_model_proto() + _message(3, (3, 0), (4, 0))
    files = {"tokenizer.model": GEMMA_MODEL + addition}
    source = write(tmp_path / "model", config_of(name), tensors_of(name), files=files)
    with pytest.raises(wm.EncodeError, match=said):
        wm.convert(source, tmp_path / "x.gguf")


def test_a_tokenizer_that_cannot_fall_back_to_bytes(tmp_path):
    tokens = models.fallback()
    tokens["model"]["vocab"]["<0x7f>"] = tokens["model"]["vocab"].pop("<0x7F>")
    # Pieces of control instead: no bytes.
    raw = GEMMA_MODEL.replace(b"<0x7F>", b"<0y7F>").replace(b"\x18\x06", b"\x18\x03")
    for files in ({"tokenizer.json": tokens}, {"tokenizer.model": raw + _message(2, (35, 0))}):
        source = write(
            tmp_path / next(iter(files)), config_of("LlamaForCausalLM"), tensors_of("LlamaForCausalLM"), files=files
        )
        with pytest.raises(wm.EncodeError, match=f"{next(iter(files))} has no token <0x7F> to fall back to"):
            wm.convert(source, tmp_path / "x.gguf")


LLAMA, QWEN, MOE, GEMMA2 = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3MoeForCausalLM", "Gemma2ForCausalLM"
GEMMA3 = "Gemma3ForCausalLM"


def _without(name, *parts):
    return {key: array for key, array in tensors_of(name).items() if not any(part in key for part in parts)}


_MODEL = models.tokenizer()["model"]
_BIAS = {"model.layers.0.self_attn.o_proj.bias": np.zeros(64, np.float32)}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
_WIDE = {"model.embed_tokens.weight": np.zeros((models.VOCAB, models.HIDDEN), np.float64)}
_WHOLE = {"model.layers.1.mlp.up_proj.weight": np.zeros((models.INNER, models.HIDDEN), np.int32)}
# Each case: architecture, changes of the configuration, tensors, tokenizer (None for the usual ones), message.
REFUSED = {
    "rope": (LLAMA, {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, None, None, "rope type 'longrope'"),
    "rope of another": (QWEN, {"rope_scaling": {"type": "llama3", "factor": 8.0}}, None, None, "rope type llama3"),
    "yarn's factor": (
        LLAMA,
        {"rope_scaling": {**_YARN, "attention_factor": 1.0}},
        None,
        None,
        "1.0 .* expected 1.13863",
    ),
    "yarn's betas": (QWEN, {"rope_scaling": {**_YARN, "beta_fast": 16}}, None, None, "beta_fast 16.0 .* expected 32"),
    "yarn's steps": (LLAMA, {"rope_scaling": {**_YARN, "truncate": False}}, None, None, "truncate False"),
    "yarn's scale": (
        LLAMA,
        {"rope_scaling": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
        None,
        None,
        "mscale_all",
    ),
    "no cap": (GEMMA2, {"attn_logit_softcapping": None}, None, None, "attn_logit_softcapping null, expected a number"),
    "no last cap": (GEMMA2, {"final_logit_softcapping": None}, None, None, "final_logit_softcapping null"),
    "wide": (
        LLAMA,
        {},
        tensors_of(LLAMA) | _WIDE,
        None,
        "token_embd.weight is of type float64, expected one of float32",
    ),
    "whole": (LLAMA, {}, tensors_of(LLAMA) | _WHOLE, None, "blk.1.ffn_up.weight is of type int32"),
    "activation": (LLAMA, {"hidden_act": "gelu"}, None, None, "hidden_act 'gelu', expected 'silu'"),
    "window": (QWEN, {"use_sliding_window": True}, None, None, "use_sliding_window True"),
    "dense": (MOE, {"mlp_only_layers": [1]}, None, None, r"mlp_only_layers \[1\], expected no value or \[\]"),
    "a layer of two": (MOE, {"decoder_sparse_step": 2}, None, None, "decoder_sparse_step 2, expected no value or 1"),
    "routing": (MOE, {"norm_topk_prob": False}, None, None, "norm_topk_prob False, expected True"),
    "scale": (GEMMA2, {"query_pre_attn_scalar": 17}, None, None, "query_pre_attn_scalar 17, expected 16"),
    "layer types": (GEMMA2, {"layer_types": ["full_attention"] * 2}, None, None, "layer_types"),
    "heads": (LLAMA, {"num_attention_heads": 5}, None, None, "5 heads, and num_key_value_heads 2|hidden_size 64"),
    "no number": (LLAMA, {"num_hidden_layers": "2"}, None, None, "'2' as num_hidden_layers"),
    "many layers": (LLAMA, {"num_hidden_layers": 2**30}, None, None, "1073741824 layers, and the model 21 tensors"),
    "many tokens": (LLAMA, {"vocab_size": 2**31 - 1}, None, None, "token_embd.weight is 384 x 64, and by config"),
    "more layers": (LLAMA, {"num_hidden_layers": 3}, None, None, "the model has no blk.2.attn_norm.weight and 8 more"),
    "fewer layers": (LLAMA, {"num_hidden_layers": 1}, None, None, "no place in a model of the architecture llama"),
    "missing": (LLAMA, {}, _without(LLAMA, "model.norm"), None, "the model has no output_norm.weight"),
    "missing output": (LLAMA, {}, _without(LLAMA, "lm_head"), None, "the model has no output.weight"),
    "odd tensor": (LLAMA, {}, tensors_of(LLAMA) | {"vision.weight": np.zeros(3)}, None, "'vision.weight' has no place"),
    "its own head": (
        GEMMA2,
        {"tie_word_embeddings": False},
        tensors_of(GEMMA2) | {"lm_head.weight": np.zeros((models.VOCAB, models.HIDDEN), np.float32)},
        None,
        "'lm_head.weight' has no place",
    ),
    "odd bias": (QWEN, {}, tensors_of(QWEN) | _BIAS, None, "no place"),
    "shape": (LLAMA, {}, tensors_of(LLAMA) | {"model.norm.weight": np.zeros(3)}, None, "is 3, and by config.json it"),
    "expert": (MOE, {}, _without(MOE, "layers.1.mlp.experts.10."), None, "blk.1.ffn_gate_exps.weight has no expert 10"),
    "no tokenizer": (LLAMA, {}, None, {}, "no tokenizer beside the model, expected tokenizer.model or tokenizer.json"),
    "pre": (LLAMA, {}, None, models.tokenizer(pre_tokenizer={"type": "Whitespace"}), r"json \(Whitespace\) is none"),
    "merges": (LLAMA, {}, None, models.tokenizer(model=_MODEL | {"ignore_merges": False}), "ignore_merges False"),
    "normalizer": (LLAMA, {}, None, models.tokenizer(normalizer={"type": "Lowercase"}), "normalizer 'Lowercase'"),
    "unigram": (LLAMA, {}, None, models.tokenizer(model={"type": "Unigram", "vocab": []}), "type 'Unigram', expected"),
    "suffix": (
        LLAMA,
        {},
        None,
        models.tokenizer(model=_MODEL | {"end_of_word_suffix": "</w>"}),
        "end_of_word_suffix '</w>'",
    ),
    "prefix": (
        LLAMA,
        {},
        None,
        models.tokenizer(model=_MODEL | {"continuing_subword_prefix": "##"}),
        "prefix '##', exp",
    ),
    "blanks": (LLAMA, {}, None, models.fallback(normalizer=None), "no step that replaces blanks by \u2581"),
    "fallback": (QWEN, {}, None, models.fallback(), "falls back to bytes"),
    "too many": (LLAMA, {}, None, models.tokenizer(added_tokens=[{"id": 384, "content": "x"}]), "the id 384"),
    "twice": (LLAMA, {}, None, models.tokenizer(added_tokens=[{"id": 380, "content": "he"}]), "the token 'he' twice"),
    "only sentencepiece": (GEMMA2, {}, None, models.tokenizer(), "no tokenizer beside the model, expected tokenizer.m"),
}


def test_yarn_with_what_llama_cpp_takes_without_a_key(tmp_path):
    usual = {
        "attention_factor": 0.1 * np.log(4) + 1,
        "beta_fast": 32,
        "beta_slow": 1,
        "truncate": True,
        "mscale": 0.707,
    }
    source = write(tmp_path / "model", config_of(LLAMA, rope_scaling=_YARN | usual), tensors_of(LLAMA))
    wm.convert(source, tmp_path / "x.gguf")
    assert wm.open(tmp_path / "x.gguf").metadata["llama.rope.scaling.yarn_beta_fast"] == 32


@pytest.mark.parametrize("name", [LLAMA, QWEN])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_yarn_of_a_length_that_only_the_model_says(tmp_path, name, key):
    """transformers and llama.cpp's converter take max_position_embeddings for the length before scaling."""
    source = write(tmp_path / "model", config_of(name, **{key: {"rope_type": "yarn", "factor": 4.0}}), tensors_of(name))
    wm.convert(source, tmp_path / "x.gguf")
    stated = wm.open(tmp_path / "x.gguf").metadata
    assert stated[f"{models.ARCHITECTURE[name]}.rope.scaling.original_context_length"] == 512


_LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 7e4}
_OLDER = {"type": "linear", "factor": 4.0}
_PLAIN = {"rope_type": "default", "rope_theta": 9e4}


@pytest.mark.parametrize(
    ("name", "rope", "factor", "theta"),
    [
        (QWEN, {"rope_scaling": _OLDER, "rope_theta": 6e4}, 4, 6e4),
        (QWEN, {"rope_scaling": _LINEAR, "rope_parameters": _PLAIN}, 4, 7e4),
        (QWEN, {"rope_scaling": _OLDER, "rope_parameters": _PLAIN, "rope_theta": None}, 4, 1e4),
        (QWEN, {"rope_scaling": {}, "rope_parameters": _LINEAR}, 4, 7e4),
        (GEMMA3, {"rope_scaling": _OLDER, "rope_theta": 6e4}, None, 6e4),
        (GEMMA3, {"rope_scaling": _LINEAR, "rope_theta": 6e4}, 4, 7e4),
        (GEMMA3, {"rope_scaling": _LINEAR, "rope_parameters": {"full_attention": _PLAIN}}, 4, 7e4),
        (GEMMA3, {"rope_parameters": {"full_attention": {**_OLDER, "rope_theta": 8e4}}}, 4, 8e4),
        (GEMMA3, {"rope_parameters": _LINEAR, "rope_theta": 6e4}, None, 6e4),
    ],
)
def test_settings_of_rotation_are_those_that_transformers_reads(tmp_path, name, rope, factor, theta):
    """In version 5.24, and so in llama.cpp's script."""
    source = write(tmp_path / "model", config_of(name, **rope), tensors_of(name), files=files_of(name))
    wm.convert(source, tmp_path / "x.gguf")
    stated, title = wm.open(tmp_path / "x.gguf").metadata, models.ARCHITECTURE[name]
    assert stated.get(f"{title}.rope.scaling.factor") == factor
    assert stated[f"{title}.rope.freq_base"] == theta


def test_a_head_beside_embeddings_that_llama_cpp_always_uses(tmp_path):
    head = {"lm_head.weight": tensors_of(GEMMA2)["model.embed_tokens.weight"]}
    for changes in ({}, {"tie_word_embeddings": True}):
        source = write(
            tmp_path / "model", config_of(GEMMA2, **changes), tensors_of(GEMMA2) | head, files=files_of(GEMMA2)
        )
        wm.convert(source, tmp_path / "x.gguf")
        assert set(wm.open(tmp_path / "x.gguf")) == set(expected(GEMMA2, tensors_of(GEMMA2)))


def test_matrices_of_float64_that_become_another_type(tmp_path):
    source = write(tmp_path / "model", config_of(LLAMA), tensors_of(LLAMA) | _WIDE)
    wm.convert(source, tmp_path / "x.gguf", dtype="fp16")
    assert wm.open(tmp_path / "x.gguf").info("token_embd.weight").dtype == "float16"
    for options in ({"dtype": "fp64"}, {"quantize": "q8_0"}):
        with pytest.raises(wm.EncodeError, match="is of type float64"):
            wm.convert(source, tmp_path / "y.gguf", **options)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, 32),
        ({"dtype": "fp16"}, 1),
        ({"dtype": "fp32"}, 0),
        ({"quantize": "q8_0"}, 7),
        ({"quantize": "q4_k_m"}, 15),
        ({"quantize": "q5_1", "max_shard_size": 30_000}, 9),
    ],
)
def test_the_type_of_a_file_that_was_gguf_before(tmp_path, options, kind):
    source = write(tmp_path / "model", config_of(LLAMA), tensors_of(LLAMA))
    wm.convert(source, tmp_path / "full.gguf")
    kinds = []
    for name, model in (("one", source), ("two", tmp_path / "full.gguf")):
        wm.convert(model, tmp_path / f"{name}.gguf", **options)
        first = next(iter(sorted(tmp_path.glob(f"{name}*.gguf"))))
        assert wm.open(first).metadata["general.file_type"] == kind, name
        kinds.append(types(first)["general.file_type"])
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("names", ["auto", "llama.cpp"])
def test_what_llama_cpp_could_not_run_is_refused(tmp_path, case, names):
    name, changes, tensors, tokens, said = REFUSED[case]
    files = files_of(name) if tokens is None else {"tokenizer.json": tokens} if tokens else {}
    source = write(tmp_path / "model", config_of(name, **changes), tensors or tensors_of(name), files=files)
    with pytest.raises(wm.EncodeError, match=said) as caught:
        wm.convert(source, tmp_path / "x.gguf", names=names)
    assert "names='keep' keeps the names of the source" in str(caught.value)
    script = "; llama.cpp's script may know more: python -m weightmap.compat.gguf convert_hf_to_gguf.py DIR"
    assert script in str(caught.value) or case in ("heads", "no number")  # damaged ones
    assert str(source) in str(caught.value)
    assert not (tmp_path / "x.gguf").exists()
    wm.convert(source, tmp_path / "x.gguf", names="keep")


def test_a_tokenizer_without_merges_is_named(tmp_path):
    files = {"tokenizer.json": models.tokenizer(model=_MODEL | {"merges": []})}
    source = write(tmp_path / "model", config_of(LLAMA), tensors_of(LLAMA), files=files)
    warnings = wm.convert(source, tmp_path / "x.gguf").warnings
    assert any("has no merges: llama.cpp does not load such a file" in warning for warning in warnings)


def test_a_configuration_that_changes_meanwhile(tmp_path, monkeypatch):
    source = write(tmp_path / "model", config_of(LLAMA), tensors_of(LLAMA))
    config = source / "config.json"
    monkeypatch.setattr(translating, "check_index", lambda _: config.write_text("{}"))
    with pytest.raises(wm.FileChangedError, match=r"config\.json: the file was changed after the model was opened"):
        wm.convert(source, tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def test_damaged_files_are_refused_by_errors_of_ours(tmp_path):
    """200 mutants of configuration and tokenizer: each converts, or is an error of ours that leaves no file."""
    rng = random.Random(38)
    tensors, seen = tensors_of(LLAMA), {"converted": 0, "refused": 0}
    originals = {
        "config.json": config_of(LLAMA),
        "tokenizer.json": models.tokenizer(),
        "tokenizer_config.json": models.SETTINGS,
    }
    odd = [None, True, -1, 0, 2**40, 1e308, "", "x", [], {}, [None], {"a": 1}, [[["x"]]], 0.5]
    source = write(tmp_path / "model", config_of(LLAMA), tensors)
    for _ in range(200):
        name = rng.choice([*originals, "tokenizer.json"])
        content = copy.deepcopy(originals[name])
        place = content
        while True:
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            inner = place[key]
            if not isinstance(inner, (dict, list)) or not inner or len(inner) > 200 or rng.random() < 0.3:
                break
            place = inner
        place[key] = rng.choice(odd)
        raw = json.dumps(content).encode()
        if rng.random() < 0.1:
            raw = raw[: rng.randrange(len(raw))]
        (source / name).write_bytes(raw)
        out = tmp_path / "x.gguf"
        try:
            wm.convert(source, out)
            seen["converted"] += 1
            wm.open(out).close()
            out.unlink()
        except wm.TensorFileError:
            seen["refused"] += 1
            assert not out.exists()
        (source / name).write_text(json.dumps(originals[name]), encoding="utf-8")
    assert min(seen.values()) > 25, seen
