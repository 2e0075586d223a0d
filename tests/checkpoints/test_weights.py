"""`TensorFile.weights`: a mapping of parameters, by the configuration beside the file or given."""

import json
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.builders import safetensors as st
from tests.checkpoints.checkpoints import EXAMPLES, MODULE, fp8_layer, stored
from tests.support import in_one_item

import weightmap as wm

TRUTH = Path(__file__).parent / "groundtruth"
NAME = f"{MODULE}.weight"


def with_others(example):
    """The example's tensors between plain ones: the pieces are not neighbours."""
    (first, array), *rest = example.tensors.items()
    before = {
        "model.embed.weight": np.ones((3, 2), np.float16),
        first: array,
        f"{MODULE}.bias": np.zeros(2, np.float32),
    }
    example.tensors = {**before, **dict(rest), "model.norm.weight": np.ones(4, np.float32)}
    return example


def test_without_quantised_tensors_it_has_what_the_file_has(tmp_path):
    """No config.json, or one without quantization_config: the same names and arrays, integers and float8 too."""
    path = tmp_path / "model.safetensors"
    tensors = {
        "embed.weight": np.ones((3, 2), np.float16),
        "embed.position_ids": np.arange(4, dtype=np.int32),
        "norm.scale": np.ones(4, np.float32),
        "norm.relative_index": np.zeros((4, 4), np.int32),
        "cast.weight": np.zeros((2, 2), ml_dtypes.float8_e4m3fn),
        "cast.input_scale": np.ones((), np.float32),
        "quant.zero_point": np.zeros(4, np.int32),
        "quant.scale": np.ones(4, np.float32),
        "image": np.zeros((4, 4), np.uint8),
        "scale": np.ones(1, np.float32),
    }
    path.write_bytes(st.build({name: stored(array) for name, array in tensors.items()}))
    for config in (None, '{"dtype": "float16"}', '{"quantization_config": null, "quantization": {"codebook": 4}}'):
        if config is not None:
            (tmp_path / "config.json").write_text(config, encoding="utf-8")
        with wm.open(path) as f:
            assert list(f.weights) == list(f) == list(tensors)
            assert all(np.shares_memory(f.weights[name], f[name]) for name in f)
            for name in f:
                f.read(name)
    with wm.open(path.read_bytes()) as f:
        assert list(f.weights) == list(f)


def test_it_is_a_mapping_in_file_order(tmp_path):
    """A parameter stands in its first piece's place; other tensors stay as they are."""
    with wm.open(with_others(EXAMPLES["awq"]()).write(tmp_path)) as f:
        names = ["model.embed.weight", NAME, f"{MODULE}.bias", "model.norm.weight"]
        assert list(f.weights) == names
        assert len(f.weights) == 4
        assert NAME in f.weights
        assert f"{MODULE}.qweight" not in f.weights
        assert [name for name, _ in f.weights.items()] == names
        assert f.weights is f.weights
        assert f.weights.get("x") is None
        with pytest.raises(wm.TensorNotFoundError, match="q_proj"):
            f.weights[f"{MODULE}.qweight"]
        w = f.weights[NAME]
        values = w.dequantize()
        assert "awq" in repr(w)
        assert len(f.shards) == 0
    with pytest.raises(wm.ClosedError):
        f.weights  # noqa: B018
    np.testing.assert_array_equal(w.dequantize(), values)  # views outlive the handle


def test_configuration_as_an_argument(tmp_path):
    """config= takes a mapping or a path, for a file without config.json beside it, and is pickled with the handle."""
    example = EXAMPLES["gptq 4"]()
    path = example.write(tmp_path)
    given = (tmp_path / "config.json").rename(tmp_path / "other.json")
    for config in (given, str(given), json.loads(given.read_text(encoding="utf-8"))):
        with wm.open(path, config=config) as f, pickle.loads(pickle.dumps(f)) as again:
            for handle in (f, again):
                np.testing.assert_array_equal(handle.weights[NAME].dequantize("float32"), example.values)
    with wm.open(path.read_bytes(), config=given) as f:
        assert list(f.weights) == [NAME]
    with wm.open(path, config=tmp_path / "none.json") as f, pytest.raises(FileNotFoundError):
        f.weights  # noqa: B018
    with pytest.raises(TypeError, match="config"):
        wm.open(path, config=3)


def test_older_places_of_the_configuration(tmp_path):
    """compression_config, bitsandbytes without its name, and hf_quant_config.json, copied with the codes."""
    example = EXAMPLES["int8 of bitsandbytes"]()
    del example.config["quant_method"]
    with wm.open(example.write(tmp_path / "older")) as f:
        np.testing.assert_array_equal(f.weights[example.name].dequantize("float32"), example.values)
    example = EXAMPLES["packed 4"]()
    del example.config["quant_method"]
    example.extra = {"quantization_config": None, "compression_config": example.config}
    with wm.open(example.write(tmp_path / "old")) as f:
        assert list(f.weights) == [example.name]
    example = EXAMPLES["modelopt nvfp4"]()
    path = example.write(tmp_path / "modelopt")
    (path.parent / "config.json").write_text("{}", encoding="utf-8")
    older = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    (path.parent / "hf_quant_config.json").write_text(json.dumps(older), encoding="utf-8")
    wm.convert(path.parent, f"{tmp_path / 'copy'}/")
    for folder in (path.parent, tmp_path / "copy"):
        with wm.open(folder) as f:
            np.testing.assert_array_equal(f.weights[example.name].dequantize("float32"), example.values)


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("float8 block", {"block_structure": "16x40"}),
        ("int8 channel", {"strategy": None, "group_size": -1}),
        ("int8 tensor", {"strategy": None, "group_size": None}),
        ("int8 group", {"strategy": None, "group_size": 32}),
    ],
)
def test_other_spellings_of_compressed_tensors(tmp_path, name, rules):
    """Blocks as versions up to 0.10 spelled them; and the strategy that follows from the size of groups."""
    example = EXAMPLES[name]()
    example.config["config_groups"]["group_0"]["weights"] |= rules
    with wm.open(example.write(tmp_path / "model")) as f:
        np.testing.assert_array_equal(f.weights[example.name].dequantize("float32"), example.values)
    for text in ("16x", "0x40", "16x40x1", "-16x40", "16 x 40"):
        example.config["config_groups"]["group_0"]["weights"] |= {"strategy": "block", "block_structure": text}
        with wm.open(example.write(tmp_path / text)) as f, pytest.raises(wm.FormatError, match="block_structure"):
            f.weights  # noqa: B018


@pytest.mark.parametrize("name", ["fp8 tensor", "modelopt nvfp4"])
def test_an_infinity_in_the_configuration(tmp_path, name):
    """In Nemotron-H's, which transformers 4 wrote in Python's dialect of JSON."""
    example = EXAMPLES[name]()
    example.extra = {"time_step_limit": [0.0, float("inf")]}
    path = example.write(tmp_path / "model")
    assert "Infinity" in (path.parent / "config.json").read_text(encoding="utf-8")
    with wm.open(path.parent) as f:
        np.testing.assert_array_equal(f.weights[example.name].dequantize("float32"), example.values)
        wm.convert(f.weights, f"{tmp_path / 'plain'}/")
    wm.convert(path.parent, f"{tmp_path / 'copy'}/")
    for folder in ("plain", "copy"):
        content = (tmp_path / folder / "config.json").read_text(encoding="utf-8")
        assert json.loads(content)["time_step_limit"] == [0.0, float("inf")]
    for target in ("x.amb", "x.gguf"):
        wm.convert(wm.open(tmp_path / "plain"), tmp_path / target)


@pytest.mark.parametrize(
    ("name", "quantisation", "keys"),
    [
        ("experts", {"expert_dtype": None}, {"expert_dtype": "fp4"}),
        ("fp8 f32", {"fmt": "float8_e4m3fn"}, {}),
        ("fp8 e5m2", {"fmt": "float8_e5m2"}, {}),
        ("gptq 4 v2", {"checkpoint_format": None, "format": "GPTQ_V2"}, {}),
    ],
)
def test_spellings_of_published_models(tmp_path, name, quantisation, keys):
    """DeepSeek V4 has the type of experts at the top, MiniMax M2 spells float8 as torch does; null means no format."""
    example = EXAMPLES[name]()
    path = example.write(tmp_path)
    with wm.open(path, config={"quantization_config": example.config | quantisation} | keys) as f:
        np.testing.assert_array_equal(f.weights[NAME].dequantize("float32"), example.values)


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "torch.float32"}, "float32"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({"dtype": "auto", "torch_dtype": "float8_e4m3fn"}, "float16"),
        ({}, "float16"),
    ],
)
def test_type_of_parameters(tmp_path, keys, dtype):
    """The configuration's type, else the scales'."""
    example = EXAMPLES["awq"]()
    path = example.write(tmp_path)
    with wm.open(path, config={"quantization_config": example.config} | keys) as f:
        assert f.weights[NAME].dtype == dtype
        assert f.weights[NAME][:1].dtype == dtype


def test_weights_that_are_not_compressed(tmp_path):
    """As llm-compressor saves them with save_compressed=False: floats that are rounded when they are used."""
    example = EXAMPLES["int8 channel"]()
    example.config |= {"format": "dense", "quantization_status": "frozen"}
    example.tensors[NAME] = example.values.astype(ml_dtypes.bfloat16)
    words = "uncompressed weights of .*, expected save_compressed=True"
    with wm.open(example.write(tmp_path)) as f, pytest.raises(wm.UnsupportedError, match=words):
        f.weights[NAME]


@pytest.mark.parametrize("block", [{}, {"weight_block_size": [1, 32], "scale_fmt": "ue8m0"}])
def test_mxfp8_as_a_method(tmp_path, block):
    """MiniMax M3, as transformers reads it: exponents for 32 columns."""
    example = EXAMPLES["modelopt MXFP8"]()
    example.config = {"quant_method": "mxfp8", **block}
    with wm.open(example.write(tmp_path)) as f:
        np.testing.assert_array_equal(f.weights[NAME].dequantize("float32"), example.values)


E8M0, LAST = np.dtype(ml_dtypes.float8_e8m0fnu), "model.layers.3.mlp.experts.2.up_proj"


@pytest.mark.parametrize(
    ("leaves", "options"),
    [
        (("gate_proj", "up_proj"), {}),
        (("w1", "w3"), {"kind": E8M0}),
        (("fc1", "fc3"), {"height": None, "width": None}),
        (("gate_proj", "up_proj"), {"height": 64}),
        (("down_proj",), {}),
        (("w2",), {"height": None, "width": None}),
    ],
)
def test_codes_of_each_expert_and_scales_of_all(tmp_path, leaves, options):
    """As transformers saves experts that it quantises: each has its part of the scales."""
    example, values = fp8_layer(leaves, **options)
    (scales, whole), *_ = example.tensors.items()
    with wm.open(example.write(tmp_path)) as f:
        assert list(f.weights) == list(values)
        for name, wanted in values.items():
            w = f.weights[name]
            np.testing.assert_array_equal(w.dequantize("float32"), wanted)
            np.testing.assert_array_equal(w[5:21], wanted.astype(w.dtype)[5:21])
            assert np.shares_memory(w.pieces[scales], f[scales])
            assert w.pieces[scales].size == whole.size // (3 * (len(leaves) if whole.shape[1] > 1 else 1))
        assert f.weights.verify()
        wm.convert(f.weights, tmp_path / "plain.safetensors", dtype="float32")
        read = dict(wm.plan(f.weights, dict.fromkeys(values, np.s_[7:20])).run("read"))
        assert all(np.array_equal(read[name], values[name].astype(read[name].dtype)[7:20]) for name in values)
    with wm.open(tmp_path / "plain.safetensors", config={}) as f:
        assert all(np.array_equal(f[name], wanted) for name, wanted in values.items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s, _: s[:, :3], r"gate_up_proj_scale_inv' is \[3, 3, 3\], expected rows for every expert, an even"),
        (lambda s, _: s[:2], "gate_up_proj_scale_inv' is"),
        (lambda s, _: s[:, :2], "gate_up_proj_scale_inv' is"),
        (lambda s, _: s[0], "gate_up_proj_scale_inv' is"),
        (lambda s, tensors: tensors.update({f"{LAST}.weight_scale_inv": s[2, 2:]}), "does not go with"),
    ],
)
def test_scales_of_all_experts_that_do_not_fit(tmp_path, change, words):
    """A parameter without its part of the scales, or with scales of its own beside them, is a FormatError."""
    example, values = fp8_layer(("gate_proj", "up_proj"))
    scales = next(iter(example.tensors))
    changed = change(example.tensors[scales], example.tensors)
    if changed is not None:
        example.tensors[scales] = changed
    with wm.open(example.write(tmp_path)) as f, pytest.raises(wm.FormatError, match=words):
        f.weights[list(values)[-1]]


@pytest.mark.parametrize("module", ["model.layers", MODULE.rpartition(".")[0]])
def test_mixed_precision_of_a_module_around(tmp_path, module):
    """ModelOpt names the module of all experts: the nearest one around a matrix counts."""
    example = EXAMPLES["modelopt MXFP8"]()
    layers = {"model": {"quant_algo": "FP8"}, module: {"quant_algo": "MXFP8"}}
    example.config |= {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    with wm.open(example.write(tmp_path)) as f:
        np.testing.assert_array_equal(f.weights[NAME].dequantize("float32"), example.values)


def test_integers_of_four_bits_in_bytes(tmp_path):
    """As llm-compressor writes W4A8: compressed-tensors packs no integers where activations are quantised too."""
    example = EXAMPLES["int8 group, zeros"]()
    example.config["config_groups"]["group_0"]["weights"]["num_bits"] = 4
    with wm.open(example.write(tmp_path)) as f:
        np.testing.assert_array_equal(f.weights[NAME].dequantize("float32"), example.values)


def test_scales_of_an_activation(tmp_path):
    """AutoAWQ adds them to Falcon, MPT, GPT-J and others: a parameter of one dimension."""
    example = with_others(EXAMPLES["awq"]())
    scales = example.tensors["transformer.h.0.ffn.act.scales"] = np.arange(1, 5, dtype=np.float16)
    with wm.open(example.write(tmp_path)) as f:
        assert f.weights["transformer.h.0.ffn.act.scales"].tolist() == scales.tolist()
        assert "transformer.h.0.ffn.act.weight" not in f.weights
        np.testing.assert_array_equal(f.weights[NAME].dequantize("float32"), example.values)


def test_parameters_that_have_names_of_pieces(tmp_path):
    """Of MLX: a weight of floats is plain, whatever lies beside it."""
    example = with_others(EXAMPLES["mlx nvfp4"]())
    names = ("a.weight", "a.biases", "b.weight", "b.scales", "b.global_scale")
    others = {name: np.ones(4, np.float32) for name in names}
    example.tensors |= others
    with wm.open(example.write(tmp_path)) as f:
        assert [f.weights[name].tolist() for name in others] == [array.tolist() for array in others.values()]
        np.testing.assert_array_equal(f.weights[example.name].dequantize("float32"), example.values)


@in_one_item("name", ["fp8 f32", "float8 tensor", "packed 4", "nvfp4", "modelopt nvfp4"])
def test_scales_of_activations_alone(tmp_path, name):
    """As mixed checkpoints keep them beside weights of floats: the weight is plain, and codes lack their scales."""
    example = EXAMPLES[name]()
    example.tensors["extra.input_scale"] = np.float32(0.5).reshape(())
    for array in (np.ones((4, 8), np.float32), np.ones((4, 8), ml_dtypes.float8_e4m3fn)):
        example.tensors["extra.weight"] = array
        with wm.open(example.write(tmp_path)) as f:
            if array.dtype == np.float32:
                assert f.weights["extra.weight"].tolist() == array.tolist()
                assert f.weights["extra.input_scale"] == 0.5
            else:
                with pytest.raises(wm.FormatError, match=r"extra"):
                    f.weights["extra.weight"]
            np.testing.assert_array_equal(f.weights[example.name].dequantize("float32"), example.values)


@in_one_item(
    "name", ["packed 4", "packed 4 experts", "int8 channel", "float8 tensor", "nvfp4", "mxfp4", "mxfp6", "mxfp8"]
)
def test_scales_of_activations(tmp_path, name):
    """Of compressed-tensors: each format of weights goes with each of activations, such as NVFP4."""
    example = EXAMPLES[name]()
    for role in ("input_scale", "input_global_scale", "input_zero_point"):
        example.tensors[example.name.replace("weight", role)] = np.ones(1, np.float32)
    with wm.open(example.write(tmp_path)) as f:
        assert list(f.weights) == [example.name]
        np.testing.assert_array_equal(f.weights[example.name].dequantize("float32"), example.values)


def test_a_matrix_of_one_block(tmp_path):
    """As ModelOpt writes FP8_PB_WO: a scale that is one number has no dimensions."""
    example = EXAMPLES["modelopt FP8_PB_WO"]()
    weight, scale = example.tensors.values()
    example.tensors = {NAME: weight[:100, :128], f"{NAME}_scale": scale[0, 0, 0, 0]}
    with wm.open(example.write(tmp_path)) as f:
        np.testing.assert_array_equal(f.weights[NAME].dequantize("float32"), example.values[:100, :128])


def test_pieces_in_several_shards(tmp_path):
    """A file of a sharded model, opened by itself, lacks the pieces of others; the model has them."""
    model = TRUTH / "awq_shards"
    with wm.open(model) as f:
        assert len(f.shards) == 2
        assert all(isinstance(f.weights[name], (np.ndarray, wm.QuantizedTensor)) for name in f.weights)
    with wm.open(next(model.glob("*00001-of*"))) as f:
        with pytest.raises(wm.FormatError, match="lacks its tensor"):
            dict(f.weights)
        assert len(dict(f)) == len(f)
