"""Recognised quantised tensors are decoded or refused: no stored piece appears under the name of a parameter."""

import json
import random
import re

import ml_dtypes
import numpy as np
import pytest
from tests.builders import Tensor, gguf
from tests.builders import safetensors as st
from tests.checkpoints.checkpoints import BF16, EXAMPLES, F8, stored
from tests.places import ROOT
from tests.support import each, in_one_item

import weightmap as wm
from weightmap.cli import main
from weightmap.core.bytes.open_source import read_small
from weightmap.report.survey import survey

AWQ, GPTQ = "awq", "gptq 4"
MLX = {"group_size": 64, "bits": 4}


def model(folder, tensors, config=None, **metadata):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.safetensors"
    path.write_bytes(st.build({name: stored(array) for name, array in tensors.items()}, metadata or None))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def codes(dtype, *shape):
    return np.arange(np.prod(shape)).reshape(shape).astype(np.uint8).astype(dtype)


ONE = np.ones((4, 1), np.float32)
EXPONENTS = np.zeros((4, 2), ml_dtypes.float8_e8m0fnu)
# Unexplained tensors as programs write them; errors name the first.
UNEXPLAINED = {
    "float8": {"a.weight": codes(F8, 4, 32), "a.weight_scale": ONE},
    "float8 of blocks": {"a.weight": codes(F8, 4, 32), "a.weight_scale_inv": ONE},
    "float8 in bfloat16": {"a.weight": codes(ml_dtypes.float8_e5m2, 4, 32), "a.scale": ONE.astype(BF16)},
    "MLX": {"a.weight": codes(np.uint32, 4, 8), "a.scales": ONE.astype(np.float16), "a.biases": ONE.astype(np.float16)},
    "GPTQ": {"a.qweight": codes(np.int32, 4, 8), "a.qzeros": codes(np.int32, 1, 1), "a.scales": ONE.astype(np.float16)},
    "NVFP4": {"a.weight": codes(np.uint8, 4, 16), "a.weight_scale": codes(F8, 4, 2), "a.weight_scale_2": ONE[0]},
    "fused experts": {"e.gate_up_proj": codes(np.uint8, 2, 4, 8), "e.gate_up_proj_weight_scale": codes(F8, 2, 4, 1)},
    "fused float8": {"e.w1": codes(F8, 2, 4, 8), "e.w1_scale_inv": ONE},
    "gpt-oss": {"e.down_proj_blocks": codes(np.uint8, 2, 4, 1, 16), "e.down_proj_scales": codes(np.uint8, 2, 4, 1)},
    "packed": {"a.weight_packed": codes(np.int32, 4, 8), "a.weight_scale": ONE},
    "nf4": {"a.weight": codes(np.uint8, 16, 1), "a.weight.absmax": ONE[:, 0]},
    "nf4 in bfloat16": {"a.weight": codes(np.uint8, 16, 2).view(BF16), "a.weight.absmax": codes(np.uint8, 4)},
    "int8": {"a.weight": codes(np.int8, 4, 8), "a.SCB": ONE[:, 0]},
    "quanto": {"a.weight._data": codes(np.int8, 4, 8), "a.weight._scale": ONE},
    "quanto, 4 bits": {"a.weight._data._data": codes(np.uint8, 4, 8), "a.weight._scale": ONE, "a.weight._shift": ONE},
    "hqq": {"a.W_q": codes(np.uint8, 4, 8), "a.scale": ONE, "a.zero": ONE},
    "hqq, older": {"a.W_q": codes(np.uint8, 4, 8), "a.meta.scale": ONE, "a.meta.zero": ONE},
    "hqq, nested": {"a.W_q": codes(np.uint8, 4, 8), "a.meta.scale_q": codes(np.uint8, 4, 1)},
    "TransformerEngine": {"a.weight._data": codes(np.uint8, 4, 8), "a.weight._scale_inv": ONE[0]},
    "onnxruntime": {"onnx::MatMul_7_Q4": codes(np.uint8, 4, 1, 16), "onnx::MatMul_7_scales": ONE},
    "onnxruntime, DequantizeLinear": {"a.b.weight_DQ_Q4": codes(np.uint8, 4, 16), "a.b.weight_DQ_scales": ONE},
    "onnxruntime, bitsandbytes": {"onnx::MatMul_7_Bnb4": codes(np.uint8, 64), "onnx::MatMul_7_absmax": ONE[:, 0]},
    "torchao": {"a.weight_qdata": codes(np.uint8, 4, 8), "a.weight_scale": EXPONENTS},
    "behind the weight": {"a.qweight": codes(np.int32, 4, 8), "a.weight.absmax": ONE},
    "beside the module": {"a.weight": codes(F8, 4, 32), "a_scale_inv": ONE},
    "Mistral": {"a.weight": codes(F8, 4, 32), "a.qscale_weight": ONE[0], "a.qscale_act": ONE[0]},
    "TensorRT-LLM": {"a.weight": codes(F8, 4, 32), "a.weights_scaling_factor": ONE[0]},
    "TensorRT-LLM, blocks": {"a.weight": codes(np.uint8, 4, 8), "a.weights_block_scaling_factor": codes(F8, 4, 1)},
    "TensorRT-LLM, integers": {"a.weight": codes(np.int8, 4, 8), "a.per_channel_scale": ONE[:, 0].astype(np.float16)},
    "EXL2": {"a.q_weight": codes(np.int32, 4, 8), "a.q_scale": codes(np.int32, 1, 1), "a.q_groups": codes(np.int16, 8)},
    "msmodelslim": {"a.weight": codes(np.int8, 4, 8), "a.deq_scale": np.ones(4, np.int64)},
    "vLLM": {"a.w13_qweight": codes(np.int32, 2, 4, 8), "a.w13_scales": np.ones((2, 1, 8), np.float16)},
    "ModelOpt": {"a.weight": codes(np.int8, 4, 8), "a.weight_quantizer._scale": ONE, "a.weight_quantizer._amax": ONE},
    "ModelOpt, NVFP4": {"a.weight": codes(np.uint8, 4, 16), "a.weight_quantizer._scale": codes(F8, 4, 2)},
    "ModelOpt, experts": {"e.down_proj": codes(np.uint8, 2, 4, 8), "e.down_proj_weight_quantizer._scale": ONE},
    "wscales": {"a.qweight": codes(np.int8, 4, 8), "a.wscales": ONE},
    "at the top": {"weight": codes(F8, 4, 32), "weight_scale": ONE},
}


@pytest.mark.parametrize("name", UNEXPLAINED)
def test_codes_that_nothing_explains(tmp_path, name):
    """Every way to the parameters and every cast refuses them, and names them; the stored tensors stay as they are."""
    tensors = UNEXPLAINED[name]
    first, array = next(iter(tensors.items()))
    path = model(tmp_path / "model", {"norm.weight": np.ones(4, np.float32), **tensors})
    casts = (("x.safetensors", {"dtype": "bfloat16"}), ("x.gguf", {"quantize": "q8_0"}))
    values = tmp_path / "values.safetensors"
    wm.save(values, {first: np.ones(array.shape, np.float64)})
    with wm.open(path) as f:
        for use, words in (
            (lambda: f.weights, ""),
            (lambda: wm.plan(f.weights), ""),
            (lambda: wm.diff(f, f.weights), ""),
            (lambda: wm.convert(f.weights, tmp_path / "x.gguf"), ""),
            (lambda: wm.convert(f, tmp_path / casts[0][0], **casts[0][1]), r".*; f\.weights takes"),
            (lambda: wm.convert(f, tmp_path / casts[1][0], **casts[1][1]), r".*; f\.weights takes"),
            (lambda: wm.diff(f, values, by_value=True), r".*; f\.weights takes"),
            (lambda: wm.diff(values, f, rtol=1), r".*; f\.weights takes"),
            (lambda: f.read(first), r".*; f\.weights has the parameter"),
            (lambda: f.read(first, "float32"), r".*f\.weights"),
            (lambda: f.read(first, out=np.zeros(array.shape, np.float64)), r".*f\.weights"),
        ):
            with pytest.raises(wm.UnsupportedError, match=rf"{re.escape(str(path))}.*'{re.escape(first)}'{words}"):
                use()
        assert not list(tmp_path.glob("x.*"))
        assert [f[key].shape for key in tensors] == [array.shape for array in tensors.values()]
        assert f.read(first, array.dtype).tobytes() == array.tobytes()
        assert f.read("norm.weight").tolist() == [1, 1, 1, 1]
        for target, options in casts:
            wm.convert(f, tmp_path / target, include="norm.*", **options)


def test_commands_name_their_option(tmp_path, capsys):
    """`convert --dtype`, `export` and `diff --by-value` name --weights, which all commands refuse; `doctor` says so."""
    path, values = str(model(tmp_path / "model", UNEXPLAINED["float8"])), str(tmp_path / "values.safetensors")
    wm.save(values, {"a.weight": np.ones((4, 32), np.float32)})
    for command in (
        ["convert", "--dtype", "bfloat16", path, str(tmp_path / "x.safetensors")],
        ["diff", "--by-value", path, values],
        ["export", path, "a.weight", str(tmp_path / "x.npy")],
        ["export", "--weights", path, "a.weight", str(tmp_path / "x.npy")],
        ["convert", "--weights", path, str(tmp_path / "x.safetensors")],
        ["inspect", "--weights", path],
        ["verify", "--weights", path],
        ["diff", "--weights", path, path],
    ):
        assert main(command) == 3
        said = "".join(capsys.readouterr())
        assert "a.weight" in said
        assert ("--weights" in said) is ("--weights" not in command)
    assert main(["doctor", path]) == 0
    assert "codes whose scales are" in capsys.readouterr().out


# A file beside the model, its content, and words of the error of `f.weights`.
STATED = [
    ("config.json", {"quantization_config": {"quant_method": "exl3"}}, "exl3"),
    (
        "config.json",
        {"a_config": {"text_config": {"quantization_config": {"quant_method": "exl3"}}}},
        "text_config.*exl3",
    ),
    ("config.json", {"text_config": {"quantization": MLX | {"mode": "mxfp2"}}}, r"text_config\..*mode"),
    ("config.json", {"quantization": MLX | {"mode": "mxfp2"}}, "mode"),
    ("config.json", {"quantization_config": {}}, "quant_method"),
    ("config.json", {"quantization_config": {"quant_method": "fp8"}}, None),
    ("quant_config.json", {"bits": 4}, "quant_method"),
    ("hf_quant_config.json", {"quantization": {"quant_algo": "XX"}}, "quant_algo"),
]


def test_codes_that_only_a_configuration_tells_of(tmp_path, monkeypatch):
    """Whatever their names and their scales' names, they are not cast; listing their names reads the configuration."""
    chance, read = random.Random(1), []
    monkeypatch.setattr("weightmap.checkpoints.configuration.read_small", lambda *a: read.append(a) or read_small(*a))
    for number in range(40):
        kind = chance.choice([F8, ml_dtypes.float8_e5m2, np.uint8, np.int8, np.int16, np.int32, np.uint32])
        name = f"m.{number}.{chance.choice(['weight', 'qweight', 'W_q', 'trellis', 'w1'])}"
        plain = {"n": ONE, "m.count": np.int32([3]), "m.ids": codes(np.int32, 2, 2), "m.mask_bias": ONE.astype("i1")}
        scales = chance.choice(["m.factors", "m.input_scale", f"{name}.scale.q", "s"])
        path = model(tmp_path / str(number), {name: codes(kind, 4, 32), scales: ONE, **plain})
        sidecar, config, words = STATED[number % len(STATED)]
        (path.parent / sidecar).write_text(json.dumps(config), encoding="utf-8")
        for target, options in (("x.safetensors", {"dtype": "bfloat16"}), ("x.gguf", {"quantize": "q8_0"})):
            with pytest.raises(wm.UnsupportedError, match=rf"'{name}', codes by \w+.* of {sidecar}; f\.weights takes"):
                wm.convert(path, tmp_path / target, **options)
            wm.convert(path, tmp_path / target, include="n", **options)
        read.clear()
        with wm.open(path) as f:
            assert all(f.read(other).dtype == "float32" for other in plain)
            assert f.read(name, kind).tobytes() == f[name].tobytes()
            assert not read
            for target in (None, np.float64, np.int64):
                with pytest.raises(wm.UnsupportedError, match=rf"codes by .*{sidecar}.*f\.weights has"):
                    f.read(name, target)
                assert 0 < len(read) < 5
            if words is not None:
                with pytest.raises(wm.FormatError, match=rf"{sidecar}.*{words}"):
                    f.weights  # noqa: B018
        with wm.open(path, config={"model_type": "x"}) as f:
            assert f.read(name).shape == (4, 32)


HEADERS = {
    "_quantization_metadata": {
        "_quantization_metadata": '{"format_version": "1.0", "layers": {"a": {"format": "nvfp4"}}}'
    },
    "Float8Tensor": {"tensor_names": '["a"]', "a": '{"_type": "Float8Tensor", "_data": {}}'},
}


@pytest.mark.parametrize("words", HEADERS)
@pytest.mark.parametrize("sharded", [False, True])
def test_headers_that_are_recognised(tmp_path, words, sharded):
    """ComfyUI's and torchao's; of a model in several files, the header of each."""
    tensors = {"a": codes(np.int16, 4, 8)}
    path = model(tmp_path, tensors, **HEADERS[words])
    if sharded:
        path.rename(tmp_path / "model-00002-of-00002.safetensors")
        model(tmp_path, {"b": np.ones(2, np.float32)}).rename(tmp_path / "model-00001-of-00002.safetensors")
        where = {"a": "model-00002-of-00002.safetensors", "b": "model-00001-of-00002.safetensors"}
        path = tmp_path / "model.safetensors.index.json"
        path.write_text(json.dumps({"metadata": {}, "weight_map": where}), encoding="utf-8")
    with wm.open(path) as f, pytest.raises(wm.UnsupportedError, match=words):
        f.weights  # noqa: B018
    plain = {"tensor_names": '["a"]', "a": '{"_type": "Tensor"}'}
    with wm.open(model(tmp_path / "plain", tensors, **plain)) as f:
        assert list(f.weights) == ["a"]


@pytest.mark.parametrize(
    "sections", [["text_config"], ["thinker_config", "text_config"], ["text_config", "audio_config"]]
)
@in_one_item("name", [AWQ, GPTQ, "packed 4", "fp8 f32"])
def test_configuration_inside_a_configuration(tmp_path, sections, name):
    """`text_config.quantization_config` counts where the top has none; decoding drops it there."""
    example = EXAMPLES[name]()
    inner = {"dtype": example.dtype, "quantization_config": example.config}
    config = {"dtype": example.dtype, "architectures": ["X"], sections[0]: inner}
    if sections[1] == "text_config" if len(sections) > 1 else False:
        config[sections[0]] = {"text_config": inner}
    elif len(sections) > 1:
        config[sections[1]] = {"quantization_config": example.config}
    folder = tmp_path / name.replace(" ", "_")
    path = example.write(folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with wm.open(path) as f:
        np.testing.assert_array_equal(f.weights[example.name].dequantize("float32"), example.values)
    plain = tmp_path / f"{name} plain"
    wm.convert(wm.open(folder).weights, f"{plain}/")
    assert "quantization_config" not in (plain / "config.json").read_text(encoding="utf-8")
    assert list(wm.open(plain)) == [example.name]
    wm.convert(folder, f"{tmp_path / name} copy/")
    assert json.loads((tmp_path / f"{name} copy" / "config.json").read_text(encoding="utf-8")) == config


SIDECARS = [
    ("quantize_config.json", GPTQ, {"quant_method"}),
    ("quantize_config.json", AWQ, set()),
    ("quant_config.json", AWQ, {"quant_method", "bits", "group_size"}),
]


@pytest.mark.parametrize(("sidecar", "name", "without"), SIDECARS)
def test_files_of_older_tools(tmp_path, sidecar, name, without):
    """quantize_config.json of AutoGPTQ and quant_config.json of AutoAWQ are copied with codes, not with values."""
    example = EXAMPLES[name]()
    folder = tmp_path / "model"
    example.write(folder)
    config = {key: value for key, value in example.config.items() if key not in without}
    if "bits" in without:
        config |= {"w_bit": 4, "q_group_size": example.config["group_size"]}
    (folder / "config.json").write_text(json.dumps({"dtype": example.dtype}), encoding="utf-8")
    (folder / sidecar).write_text(json.dumps(config), encoding="utf-8")
    with wm.open(folder) as f:
        np.testing.assert_array_equal(f.weights[example.name].dequantize("float32"), example.values)
    wm.convert(folder, f"{tmp_path / 'copy'}/")
    assert (tmp_path / "copy" / sidecar).read_bytes() == (folder / sidecar).read_bytes()
    wm.convert(wm.open(folder).weights, f"{tmp_path / 'plain'}/")
    assert not (tmp_path / "plain" / sidecar).exists()
    (folder / sidecar).write_text('{"some": 1, "quant_method": "vptq"}', encoding="utf-8")
    with wm.open(folder) as f, pytest.raises(wm.UnsupportedError, match=rf"{sidecar}.*vptq"):
        f.weights  # noqa: B018


# Each method's list of modules that are not quantised.
LEFT_OUT = {
    AWQ: {"modules_to_not_convert": ["up"]},
    GPTQ: {"dynamic": {r"-:.*down": {}, r"-:^up$": {}}},
    "gpt-oss": {"modules_to_not_convert": ["up"]},
    "fp8 f32": {"ignored_layers": ["up"]},
    "fbgemm": {"modules_to_not_convert": ["up"]},
    "packed 4": {"ignore": ["up"]},
    "modelopt nvfp4": {"exclude_modules": ["up*"]},
    "nf4, nested True": {"llm_int8_skip_modules": ["up"]},
}


@in_one_item("name, dtype", [(name, dtype) for name in LEFT_OUT for dtype in (np.int8, np.uint8, np.int32)])
def test_integers_without_scales(tmp_path, name, dtype):
    """A weight of integers whose scales are missing is refused, unless the configuration leaves its module out."""
    example = EXAMPLES[name]()
    tensors = {**example.tensors, "up.weight": codes(dtype, 4, 32)}
    config = {"dtype": "bfloat16", "quantization_config": example.config}
    path = model(tmp_path / name, tensors, config)
    with wm.open(path) as f:
        np.testing.assert_array_equal(f.weights[example.name].dequantize("float32"), example.values)
        with pytest.raises(wm.FormatError, match=r"'up.weight' is .*int\d+, and its scales are missing"):
            f.weights["up.weight"]
    for use in (
        lambda: wm.verify(wm.open(path).weights),
        lambda: wm.convert(wm.open(path).weights, tmp_path / "x.safetensors"),
    ):
        with pytest.raises(wm.FormatError, match=r"up\.weight"):
            use()
    assert not (tmp_path / "x.safetensors").exists()
    config["quantization_config"] |= LEFT_OUT[name]
    with wm.open(model(tmp_path / name, tensors, config)) as f:
        assert f.weights["up.weight"].tolist() == tensors["up.weight"].tolist()


@pytest.mark.parametrize("method", ["exl3", "modelopt"])
def test_a_gguf_file_describes_itself(tmp_path, method):
    """The configuration beside it is about other files of the directory, unless it is given."""
    shape, octets = (2, 64), bytes(range(36)) * 2
    tensors = {
        "blk.0.ffn_up.weight": Tensor("nvfp4", shape, octets),
        "blk.0.ffn_up.input_scale": Tensor("float32", (1,), bytes(4)),
    }
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf.build(tensors))
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"quantization_config": {"quant_method": method, "quant_algo": "NVFP4"}}))
    with wm.open(path) as f:
        assert {name: getattr(w, "scheme", w.dtype) for name, w in f.weights.items()} == {
            "blk.0.ffn_up.weight": "nvfp4",
            "blk.0.ffn_up.input_scale": np.float32,
        }
    with wm.open(path, config=config) as f, pytest.raises(wm.FormatError):
        dict(f.weights)


def test_only_the_cache_is_quantised(tmp_path):
    """Of keys and values: every tensor is a parameter, and codes among them are refused."""
    tensors = {"a.weight": ONE, "a.k_scale": ONE[0]}
    config = {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    with wm.open(model(tmp_path / "m", tensors, {"quantization_config": config})) as f:
        assert {name: f.weights[name].tolist() for name in f.weights} == {n: a.tolist() for n, a in tensors.items()}
    path = model(tmp_path / "m", {"a.weight": codes(F8, 4, 32)}, {"quantization_config": config})
    with wm.open(path) as f, pytest.raises(wm.FormatError, match=r"a\.weight"):
        f.weights["a.weight"]


def test_codes_of_modules_that_mixed_precision_lacks(tmp_path):
    """Their scales may lie in another shard: the codes are not values."""
    layers = {"b": {"quant_algo": "FP8"}}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    for array in (codes(F8, 4, 32), codes(np.uint8, 4, 16)):
        tensors = {"a.weight": array, "c.weight": ONE}
        with wm.open(model(tmp_path / "m", tensors, {"quantization_config": config})) as f:
            assert f.weights["c.weight"].tolist() == ONE.tolist()
            with pytest.raises(wm.FormatError, match=r"'a\.weight' is .*scales are missing"):
                f.weights["a.weight"]


def test_a_part_of_a_model_of_comfyui(tmp_path):
    """The mark of a file follows the name of its part; rotated weights are refused."""
    example = EXAMPLES["comfyui"]()
    tensors = {**example.tensors, "model.diffusion_model.scaled_fp8": codes(F8, 2)}
    with wm.open(model(tmp_path / "m", tensors)) as f:
        assert list(f.weights) == [example.name]
        np.testing.assert_array_equal(f.weights[example.name].dequantize("float32"), example.values)
    header = {"_quantization_metadata": json.dumps({"layers": {"a": {"format": "float8_e4m3fn"}}}), "a": "b"}
    wm.convert(wm.open(model(tmp_path / "h", example.tensors, **header)).weights, tmp_path / "plain.safetensors")
    assert dict(wm.open(tmp_path / "plain.safetensors").metadata) == {"a": "b"}  # no words on how it was quantised
    described = EXAMPLES["comfyui e5m2, described"]()
    text = json.dumps({"format": "float8_e5m2", "convrot": True}).encode()
    described.tensors[described.name.replace("weight", "comfy_quant")] = np.frombuffer(text, np.uint8)
    with wm.open(model(tmp_path / "n", described.tensors)) as f, pytest.raises(wm.UnsupportedError, match="convrot"):
        f.weights[described.name]


@pytest.mark.parametrize("left_out", [False, True])
def test_codes_of_another_scheme(tmp_path, left_out):
    """A weight with scales under another program's names is not plain, in a list or not."""

    def check(pair):
        method, name = pair
        tensors = UNEXPLAINED[name]
        config = EXAMPLES[method]().config | ({"ignore": ["a"], "modules_to_not_convert": ["a"]} if left_out else {})
        path = model(tmp_path / "model", tensors, {"quantization_config": config})
        with wm.open(path) as f, pytest.raises(wm.FormatError):
            dict(f.weights)

    methods = ["fp8 f32", "packed 4", "modelopt nvfp4", "fbgemm", "nf4, nested True", AWQ, "gpt-oss"]
    names = ["MLX", "int8", "float8 in bfloat16", "quanto", "hqq"]
    each(
        [(method, name) for method in methods for name in names if (method, name) != ("fp8 f32", "float8 in bfloat16")],
        check,
    )


LONE = {
    "a float8 weight": ("extra.weight", codes(F8, 4, 32)),
    "another float8 weight": ("extra.weight", codes(ml_dtypes.float8_e5m2, 4, 32)),
    "a float8 weight of one dimension": ("extra.weight", codes(F8, 32)),
    "a weight of bytes": ("extra.weight", codes(np.uint8, 4, 32)),
    "experts of bytes": ("mlp.experts.gate_up_proj", codes(np.uint8, 2, 4, 8)),
    "experts of float8": ("mlp.experts.w1", codes(F8, 2, 4, 8)),
    "float8 of any name": ("extra.w", codes(F8, 4, 32)),
    "integers named as codes": ("extra.W_q", codes(np.uint8, 4, 32)),
}


@pytest.mark.parametrize("name", ["awq", "gptq 4", "gpt-oss", "nf4, nested False", "int8 of bitsandbytes", "fp8 f32"])
@pytest.mark.parametrize("kind", LONE)
def test_codes_without_scales_under_a_configuration(tmp_path, name, kind):
    """They are refused by the name of the tensor; the other parameters and the stored tensors stay readable."""
    example = EXAMPLES[name]()
    lone, array = LONE[kind]
    example.tensors[lone] = array
    for plain in (np.arange(4, dtype=np.float32), np.zeros((1, 1, 4, 4), np.uint8)):  # weights and masks
        example.tensors[f"plain{plain.ndim}.{'weight' if plain.ndim == 1 else 'bias'}"] = plain
    path = example.write(tmp_path / "model")
    with wm.open(path) as f:
        view = f.weights
        with pytest.raises(wm.FormatError, match=rf"'{lone}' is \w+, (and its scales|codes without)") as raised:
            view[lone]
        said = str(raised.value)
        assert "scales are missing" in said or re.search(r"quant_method '.*' in quantization_config of .*config", said)
        assert view["plain1.weight"].tolist() == [0, 1, 2, 3]
        assert view["plain4.bias"].shape == (1, 1, 4, 4)
        assert f[lone].tobytes() == array.tobytes()
        with pytest.raises(wm.FormatError, match=lone):
            dict(view)


def test_differences_from_codes_are_not_measured(tmp_path, capsys):
    """`diff` says so and names f.weights; a report on both refuses, and one on the checkpoint has no statistics."""
    example = EXAMPLES["fp8 f32"]()
    path = example.write(tmp_path / "model")
    original = tmp_path / "original.safetensors"
    original.write_bytes(st.build({example.name: stored(example.values)}))
    for names in ((str(original), str(path)), (str(path), str(original))):
        found = wm.diff(*names)
        assert [(d.what, d.n_different, d.max_abs, d.rms) for d in found.changed] == [("dtype", None, None, None)]
        said = f"values of 1 tensor of codes, such as '{example.name}': f.weights (--weights) compares the parameters"
        assert list(found.notes) == [said]
        page = tmp_path / "page.html"
        assert main(["report", *names, str(page)]) == 3
        assert "--weights takes the parameters" in capsys.readouterr().err
        assert not page.exists()
    assert wm.diff(wm.open(original), wm.open(path).weights).changed[0].rms < 0.01
    with wm.open(path) as f:
        statistics = {t.info.name: (t.numbers, t.costs) for t in survey(f, verify=False, progress=None).tensors}
        of_parameters = survey(f.weights, verify=False, progress=None).tensors
    assert statistics[example.name] == (None, {})
    assert of_parameters[0].numbers.high == example.values.astype(BF16).max()


@pytest.mark.parametrize("name", ["awq_gemm", "fp8_block_ragged"])
def test_a_parameter_is_exported(tmp_path, name):
    """In float16 if that is the model's type, else in float32, which numpy has."""
    path, out = ROOT / "tests" / "checkpoints" / "groundtruth" / name, tmp_path / "x.npy"
    with wm.open(path) as file:
        for parameter, value in file.weights.items():
            if isinstance(value, wm.QuantizedTensor):
                assert main(["export", "--weights", str(path), parameter, str(out)]) == 0
                found = np.load(out)
                np.testing.assert_array_equal(found, value.dequantize(found.dtype))


@pytest.mark.parametrize("name", ["x.amb", "x.gguf"])
def test_codes_without_a_place_get_no_advice_that_would_not_help(tmp_path, name):
    """Another type would be refused in turn: the parameters have one."""
    path = model(tmp_path / "model", UNEXPLAINED["float8"])
    with pytest.raises(wm.UnsupportedError, match=r"'a\.weight', codes whose scales are .*; f\.weights takes"):
        wm.convert(path, tmp_path / name, names="keep")
    wm.save(tmp_path / "values.safetensors", {"a": codes(F8, 4)})
    with pytest.raises(wm.EncodeError, match="convert with dtype='float32'"):
        wm.convert(tmp_path / "values.safetensors", tmp_path / name)
