"""`convert`, `diff` and `verify` of `f.weights`: parameters instead of stored tensors."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.builders import gguf
from tests.builders import safetensors as st
from tests.checkpoints.checkpoints import EXAMPLES, MODULE, stored
from tests.support import each, in_one_item

import weightmap as wm
from weightmap import cli
from weightmap.checkpoints import weights
from weightmap.core.bytes.source import Source

TRUTH = Path(__file__).parent / "groundtruth"
NAME = f"{MODULE}.weight"


@in_one_item("name", EXAMPLES)
def test_every_scheme_is_decoded(tmp_path, name):
    """The target has the parameters, in the model's type or in `dtype`, rounded once."""
    example = EXAMPLES[name]()
    source = example.write(tmp_path / name)
    with wm.open(source) as f:
        own = f.weights[example.name].dequantize()
    every = {None: own, "float32": example.values}
    with np.errstate(over="ignore"):
        every |= {name: example.values.astype(name) for name in ("float16", ml_dtypes.bfloat16, "float64")}
    for dtype, wanted in every.items():
        target = tmp_path / f"{name}.safetensors"
        report = wm.convert(wm.open(source).weights, target, dtype=dtype)
        assert report.tensors == 1
        with wm.open(target) as g:
            assert list(g) == [example.name]
            assert g[example.name].dtype == wanted.dtype
            assert g[example.name].tobytes() == wanted.tobytes()


@in_one_item("name", [name for name in EXAMPLES if name.startswith(("awq", "gptq"))])
def test_of_large_pieces_some_columns_are_read_at_a_time(tmp_path, monkeypatch, name):
    """Also where columns are decoded together, beside columns read earlier; the result is the same."""
    example, sizes, read_runs = EXAMPLES[name](), [], Source.read_runs
    monkeypatch.setattr(weights, "_DIRECT_PIECE", 1)
    monkeypatch.setattr(weights, "_MAX_COLUMNS_NBYTES", 600)
    monkeypatch.setattr(
        Source, "read_runs", lambda *args, **gap: (sizes.append(args[3].nbytes), read_runs(*args, **gap))
    )
    source, target = example.write(tmp_path / name), tmp_path / f"{name}.safetensors"
    wm.convert(wm.open(source).weights, target)
    with wm.open(source) as f, wm.open(target) as g:
        assert g[example.name].tobytes() == f.weights[example.name].dequantize().tobytes()
    assert len(sizes) > 1 or "gptq 3" in name  # whose rows are one step


def test_parameters_that_overflow_are_counted(tmp_path):
    """The report counts finite values that a type cannot hold; earlier NaNs do not count."""
    example = EXAMPLES["gpt-oss"]()
    scales = example.tensors[f"{example.name}_scales"]
    scales[:], scales[0, 0], scales[1, 5] = 127, 255, 150  # NaN, and 2 ** 23
    source, target = example.write(tmp_path / "source"), tmp_path / "target.safetensors"
    values = wm.open(source).weights[example.name].dequantize("float32")
    count, nans = int((np.abs(values) > 65520).sum()), int(np.isnan(values).sum())
    assert count > 0
    assert nans > 0
    with wm.open(source).weights as weights:
        *_, line = wm.convert(weights, target, dtype="float16").warnings
        assert line == f"{count} values of 1 tensor are out of the range of float16: they became infinite"
        assert not wm.convert(weights, target, dtype="bfloat16").warnings


def test_a_directory_becomes_a_plain_model(tmp_path):
    """Shards stay shards, config.json is copied without quantization_config, and the result has no groups."""
    for run in (None, wm.Run(ThreadPoolExecutor(2))):
        target = tmp_path / f"plain{run is None}"
        wm.convert(wm.open(TRUTH / "awq_shards").weights, target, run=run)
        config = json.loads((target / "config.json").read_text(encoding="utf-8"))
        assert "quantization_config" not in config
        assert config["torch_dtype"] == "float16"
        with wm.open(TRUTH / "awq_shards") as f, wm.open(target) as g:
            assert set(g) == set(f.weights)
            assert len(g.shards) == 2
            for name in g:
                assert g[name].tobytes() == np.asarray(f.weights[name]).tobytes()
    assert wm.diff(wm.open(TRUTH / "awq_shards").weights, wm.open(target).weights).equal


def test_options_of_convert(tmp_path):
    """Globs, renaming and quantising see the names of parameters; shards are split by their decoded bytes."""
    source = TRUTH / "gptq4_v1"
    with wm.open(source) as f:
        names = [name for name in f.weights if isinstance(f.weights[name], wm.QuantizedTensor)]
        report = wm.convert(
            wm.open(source).weights, tmp_path / "x.safetensors", include=names[0], rename={names[0]: "w"}
        )
        assert report.tensors == 1
        with wm.open(tmp_path / "x.safetensors") as g:
            assert g["w"].tobytes() == f.weights[names[0]].dequantize().tobytes()
        wm.convert(wm.open(source).weights, tmp_path / "split", max_shard_size=12000)
    with wm.open(tmp_path / "split") as g:
        assert len(g.shards) > 2


def test_diff_has_the_error_of_each_parameter(tmp_path):
    """RMS, relative error and worst row against the original."""
    example = EXAMPLES["packed 4"]()
    quantised = example.write(tmp_path / "quantised")
    original = example.values.copy()
    original[3] += np.float32(0.5)
    original[7, 1] += np.float32(0.25)
    (tmp_path / "original").mkdir()
    path = tmp_path / "original" / "model.safetensors"
    path.write_bytes(st.build({NAME: stored(original)}))
    [found] = wm.diff(wm.open(path).weights, wm.open(quantised).weights).changed
    with wm.open(quantised) as f:
        decoded = f.weights[NAME].dequantize().astype(np.float64)
    error = original.astype(np.float64) - decoded
    assert found.name == NAME
    assert found.rms == pytest.approx(np.sqrt((error**2).mean()))
    assert found.relative == pytest.approx(np.sqrt((error**2).sum() / (original.astype(np.float64) ** 2).sum()))
    assert found.worst_row == 3
    assert wm.diff(wm.open(quantised).weights, wm.open(quantised).weights).equal
    assert wm.diff(quantised, quantised).equal


def test_verify_checks_pieces(tmp_path):
    """A sound file whose pieces make no parameter passes verify, and fails it as `f.weights`."""
    report = wm.verify(wm.open(TRUTH / "awq_gemm").weights)
    assert any("parameters" in check for check in report.checks)
    damaged = TRUTH / "malformed" / "gptq_gidx_high"
    assert wm.verify(damaged).checks
    with pytest.raises(wm.FormatError, match="g_idx"):
        wm.verify(wm.open(damaged).weights)
    sharded = shutil.copytree(TRUTH / "awq_shards", tmp_path / "sharded")
    report = wm.verify(wm.open(sharded).weights, run=wm.Run(ThreadPoolExecutor(2)))
    assert any("parameters" in check for check in report.checks)


def test_commands(tmp_path, capsys):
    """--weights of inspect, convert, diff and verify."""
    source = str(TRUTH / "awq_gemm")
    assert cli.main(["inspect", "--weights", "--json", source]) == 0
    tensors = {about["name"]: about for about in json.loads(capsys.readouterr().out)["tensors"]}
    about = tensors["model.layers.0.self_attn.q_proj.weight"]
    assert (about["dtype"], about["shape"], about["block_size"]) == ("awq gemm", [32, 128], 64)
    assert about["bits_per_weight"] == pytest.approx(4 + (16 + 4) / 64)
    assert tensors["model.norm.weight"]["dtype"] == "float16"
    assert cli.main(["inspect", "--weights", source]) == 0
    assert "awq gemm" in capsys.readouterr().out
    plain = str(tmp_path / "plain.safetensors")
    assert cli.main(["convert", "--weights", source, plain]) == 0
    assert cli.main(["diff", "--weights", "--tensors-only", source, plain]) == 0
    other = str(tmp_path / "float8.safetensors")
    assert cli.main(["convert", "--weights", "--dtype", "float8_e4m3fn", source, other]) == 0
    capsys.readouterr()
    assert cli.main(["diff", "--weights", "--tensors-only", source, other]) == 1
    assert "worst row" in capsys.readouterr().out
    assert cli.main(["verify", "--weights", "-v", source]) == 0
    assert "parameters" in capsys.readouterr().out
    assert cli.main(["inspect", "--weights", str(TRUTH / "malformed" / "gptq_gidx_high")]) == 3
    assert "g_idx" in capsys.readouterr().err


def test_parameters_are_counted(tmp_path, capsys):
    """inspect --weights, doctor and report count parameters, and the stored bits for each."""
    source = TRUTH / "gptoss"
    with wm.open(source) as f:
        elements = {name: w.size for name, w in f.weights.items()}
        quantised = {name: w for name, w in f.weights.items() if isinstance(w, wm.QuantizedTensor)}
        nbytes = sum(w.nbytes for w in f.weights.values())
    count, inner = sum(elements.values()), sum(w.size for w in quantised.values())
    wanted = {"parameters": count, "bits_per_weight": 8 * nbytes / count}
    wanted |= {"quantized": inner, "quantized_bits_per_weight": 4.25, "training": 0}
    for command in (["inspect", "--weights"], ["doctor"]):
        assert cli.main([*command, "--json", str(source)]) == 0
        assert json.loads(capsys.readouterr().out)["weight"] == pytest.approx(wanted)
        assert cli.main([*command, str(source)]) == 0
        assert f"{inner:,} of them quantised, of 4.250 bits" in capsys.readouterr().out
    pages = {}
    for options in ([], ["--weights"]):
        assert cli.main(["report", *options, str(source), str(tmp_path / "x.html")]) == 0
        pages[bool(options)] = (tmp_path / "x.html").read_text(encoding="utf-8")
        assert f"{count:,} elements" in pages[bool(options)]
    assert ("mxfp4 gpt-oss" in pages[True], "mxfp4 gpt-oss" in pages[False]) == (True, False)
    assert all("down_proj_blocks" in page for page in pages.values())  # the map of the file
    damaged = str(TRUTH / "malformed" / "gptq_gidx_high")
    capsys.readouterr()
    assert cli.main(["doctor", "--json", damaged]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weight"] is None
    assert "g_idx" in found["problem"]
    assert cli.main(["doctor", damaged]) == 0
    assert "g_idx" in capsys.readouterr().out
    assert cli.main(["report", damaged, str(tmp_path / "x.html")]) == 0
    assert cli.main(["report", "--weights", damaged, str(tmp_path / "x.html")]) == 3


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("optimizer.state.0.exp_avg", False),
        ("optimizer_state_dict.state.0.step", False),
        ("optimizer_states.0.state.0.exp_avg_sq", False),
        ("optim.state.0.momentum_buffer", False),
        ("state.12.exp_avg", False),
        ("rng_state", False),
        ("cuda_rng_state.0", False),
        ("lr_schedulers.0.factor", False),
        ("optimus.layer.weight", True),
        ("model.optimizer.weight", True),
        ("schedule_embedding.weight", True),
        ("state.0.weight", True),
        ("ranger.weight", True),
    ],
)
def test_state_of_a_training_is_not_counted_as_parameters(tmp_path, capsys, name, counts):
    path = tmp_path / "m.safetensors"
    wm.save(path, {"model.w": np.ones((3, 4), np.float32), name: np.ones(5, np.float32)})
    assert cli.main(["inspect", "--weights", "--json", str(path)]) == 0
    weight = json.loads(capsys.readouterr().out)["weight"]
    assert (weight["parameters"], weight["training"]) == ((17, 0) if counts else (12, 5))
    assert cli.main(["doctor", str(path)]) == 0
    state = "" if counts else "; not counted: 5 elements of training state"
    assert f"{weight['parameters']} elements of 32.000 bits{state}\n" in capsys.readouterr().out


def halved(example):
    """The example with scales that fit float16, and zero points in the middle."""
    for name, array in example.tensors.items():
        if name.endswith(("scales", "weight_scale")) and array.dtype != np.uint8:
            example.tensors[name] = np.ldexp(np.float32(1 + np.arange(array.size) % 7 / 8), -6).reshape(array.shape)
            example.tensors[name] = example.tensors[name].astype(array.dtype)
        if name.endswith("qzeros"):
            stored_zero = {"gptq 4": 0x77777777, "gptq 4 v2": 0x88888888, "gptq 8": 0x7F7F7F7F, "awq": 0x88888888}
            example.tensors[name] = np.full(array.shape, stored_zero[example.key], np.uint32).view(np.int32)
    return example


REPACKED = {
    **dict.fromkeys(("gptq 4", "gptq 4 v2", "awq", "awq without zeros", "packed 4"), "q4_0"),
    **dict.fromkeys(("gptq 8", "packed 8", "int8 channel", "int8 group", "int8 tensor"), "q8_0"),
    **dict.fromkeys(("mxfp4", "experts", "gpt-oss", "mlx mxfp4", "mlx mxfp4 experts"), "mxfp4"),
    **dict.fromkeys(("mlx nvfp4", "mlx nvfp4 experts"), "nvfp4"),
}


@in_one_item("name", REPACKED)
def test_integers_and_scales_go_to_gguf_as_they_are(tmp_path, name):
    """Values in GGUF's blocks equal the decoded ones to the bit, but for the sign of zero."""
    example = EXAMPLES[name]()
    example.key = name
    source = halved(example).write(tmp_path / name)
    wm.convert(wm.open(source).weights, tmp_path / "x.gguf")
    with wm.open(source) as f, wm.open(tmp_path / "x.gguf") as g:
        wanted = f.weights[example.name].dequantize("float32")
        assert g[example.name].scheme == REPACKED[name]
        found = g[example.name].dequantize()
        found = found.swapaxes(1, 2) if name == "gpt-oss" else found
        np.testing.assert_array_equal(found, wanted)
    report = wm.convert(wm.open(source).weights, tmp_path / "y.gguf", dtype="float32")
    assert report.tensors == 1
    with wm.open(tmp_path / "y.gguf") as g:
        assert g[example.name].dtype == np.float32


# The scheme, block size and type of scales in AMB.
IN_AMB = {
    **dict.fromkeys(("gptq 4", "gptq 4 v2", "awq", "awq without zeros", "packed 4"), ("int4_block", 32, "fp16")),
    "gptq, one group": ("int4_block", 128, "fp16"),
    "int8 tensor": ("int8", 0, "fp16"),
}


def test_integers_and_scales_go_to_amb_as_they_are(tmp_path):
    """Values in AMB's blocks, as long as groups, equal the decoded ones; scales beyond float16 are float32."""

    def check(name):
        for half in (True, False):
            example = EXAMPLES[name]()
            example.key = "gptq 4" if name == "gptq, one group" else name
            example = halved(example)
            role = next(role for role in example.tensors if role.endswith(("scales", "weight_scale")))
            if not half:  # bfloat16 has scales that float16 lacks
                example.tensors[role] = (example.tensors[role].astype(np.float32) * 2.0**-30).astype(ml_dtypes.bfloat16)
            source = example.write(tmp_path / name)
            wm.convert(wm.open(source).weights, tmp_path / "x.amb")
            with wm.open(source) as f, wm.open(tmp_path / "x.amb") as g:
                q = g[example.name]
                scheme, size, kind = IN_AMB[name]
                assert (q.scheme, q.block_size, q.scale_type) == (scheme, size, kind if half else "fp32")
                assert q.dequantize().tobytes() == f.weights[example.name].dequantize("float32").tobytes()
            how = wm.Quantize(scheme, block_size=size // 2 or 32, scale_type="fp16")
            if not half:
                with pytest.raises(wm.EncodeError, match="q_proj"):
                    wm.convert(wm.open(source).weights, tmp_path / "y.amb", quantize=how)
                continue
            wm.convert(wm.open(source).weights, tmp_path / "y.amb", quantize=how)
            with wm.open(tmp_path / "y.amb") as g:
                assert g[example.name].block_size == size // 2
                assert g[example.name].dequantize().tobytes() == q.dequantize().tobytes()

    each(IN_AMB, check)
    for name in ("gptq 8", "int8 channel", "mxfp4", "packed by tensor"):  # 43 columns do not pair
        source = halved(EXAMPLES[name]() if name != "gptq 8" else keyed("gptq 8")).write(tmp_path / name)
        report = wm.convert(wm.open(source).weights, tmp_path / "x.amb")
        assert any("1 parameter decoded" in warning for warning in report.warnings)


def keyed(name):
    example = EXAMPLES[name]()
    example.key = name
    return example


def nvfp4(name, *, factor=None, scale=None):
    """An example of NVFP4 with scales that ggml has."""
    example = EXAMPLES[name]()
    for role, array in example.tensors.items():
        if role.endswith("weight_scale"):
            octets = np.arange(array.size, dtype=np.uint8) % 0x7F
            octets.flat[3] = octets.flat[3] if scale is None else scale
            example.tensors[role] = octets.reshape(array.shape).view(array.dtype)
        if factor is not None and role.endswith(("weight_scale_2", "weight_global_scale")):
            example.tensors[role] = np.full(array.shape, factor, np.float32)
    return example


@in_one_item("name", [name for name in EXAMPLES if name.startswith(("modelopt Q8", "modelopt IQ"))])
def test_blocks_of_ggml_go_to_gguf_as_they_are(tmp_path, name):
    """The target has the stored bytes."""
    example, target = EXAMPLES[name](), tmp_path / "x.gguf"
    source = example.write(tmp_path / name)
    wm.convert(wm.open(source).weights, target)
    with wm.open(target) as g:
        assert (g[NAME].scheme, g[NAME].shape) == (name.split()[1].lower(), example.values.shape)
        assert g[NAME].payload.tobytes() == example.tensors[NAME].tobytes()


def test_nvfp4_goes_to_gguf_as_it_is(tmp_path):
    """The stored codes and scales; the scale of the tensor stands beside it. Inexact parameters are decoded."""
    target = tmp_path / "x.gguf"
    scale = NAME.replace("weight", "scale")
    of_modelopt = [(name, None, None) for name in ("modelopt nvfp4", "modelopt NVFP4")]  # the second: 32 columns
    for name, factor, inverse in (*of_modelopt, ("nvfp4", 64, 1 / 64), ("nvfp4", 0.125, 8)):
        example = nvfp4(name, factor=factor)
        source = example.write(tmp_path / name)
        wm.convert(wm.open(source).weights, target)
        wanted = example.tensors[f"{MODULE}.weight_scale_2"] if inverse is None else inverse
        with wm.open(source) as f, wm.open(target) as g:
            assert list(g) == [NAME, scale]
            assert (g[NAME].scheme, g[scale].dtype, g[scale].shape) == ("nvfp4", np.float32, (1,))
            assert g[scale][0] == wanted
            codes = g[NAME].payload.reshape(len(example.values), -1, 36)
            stored_scales = next(array for role, array in example.tensors.items() if role.endswith("weight_scale"))
            again = codes[..., :4].size // stored_scales.size
            assert codes[..., :4].tobytes() == stored_scales.repeat(again, -1).tobytes()
            # The checkpoint's library rounds the product of both scales, and then the product with the code once more.
            values = f.weights[NAME].dequantize("float32")
            np.testing.assert_allclose(g[NAME].dequantize() * np.float32(wanted), values, rtol=2**-22)
            np.testing.assert_array_equal(g.weights[NAME].dequantize(), values)  # but for the signs of zeros
            wm.convert(g.weights, tmp_path / "again.gguf")
        assert (tmp_path / "again.gguf").read_bytes() == target.read_bytes()
    taken = nvfp4("modelopt nvfp4")
    taken.tensors[scale] = np.ones(1, np.float32)
    inexact = {
        "global": nvfp4("nvfp4", factor=777.25),
        "zero": nvfp4("nvfp4", factor=0),
        "signed": nvfp4("modelopt nvfp4", scale=0x83),
        "nan": nvfp4("modelopt nvfp4", scale=0x7F),
        "taken": taken,
        "left out": nvfp4("modelopt nvfp4"),
    }
    for key, example in inexact.items():
        include = ["*.weight"] if key == "left out" else None
        report = wm.convert(wm.open(example.write(tmp_path / key)).weights, target, include=include)
        assert any("1 parameter decoded" in warning for warning in report.warnings), key
        with wm.open(target) as g:
            assert isinstance(g[NAME], np.ndarray)
            assert (scale in g) is (key == "taken")


def gguf_nvfp4(path, shape, scale):
    """Write llama.cpp's NVFP4 with a scale beside it; return the values, by the definition."""
    rng = np.random.default_rng(len(shape))
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // 64, 36), np.uint8)
    blocks[..., :4] %= 0x7F
    tensors = {
        f"{MODULE}.weight": gguf.Tensor("nvfp4", shape, blocks.tobytes()),
        f"{MODULE}.scale": gguf.Tensor(scale.dtype.name, scale.shape, scale.tobytes()),
        "norm.weight": gguf.Tensor("float32", (2,), np.ones(2, np.float32).tobytes()),
    }
    path.write_bytes(gguf.build(tensors))
    halves = blocks[..., 4:].reshape(*shape[:-1], -1, 4, 8)
    codes = np.concatenate([halves & 15, halves >> 4], -1)
    factors = blocks[..., :4].view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    whole = scale.reshape(-1, *[1] * (factors.ndim - 1))
    e2m1 = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    return (e2m1[codes] * (factors * whole)[..., None]).reshape(shape)


@pytest.mark.parametrize(("shape", "count"), [((3, 128), 1), ((3, 4, 64), 1), ((3, 4, 64), 3)])
def test_nvfp4_of_gguf_has_the_scale_beside_it(tmp_path, shape, count):
    """Parameters are multiplied by it; what computes on stored tensors refuses them, and names `f.weights`."""
    path = tmp_path / "x.gguf"
    values = gguf_nvfp4(path, shape, np.float32([0.37, 1.7, 3.1][:count]))
    with wm.open(path) as f:
        assert list(f.weights) == [NAME, "norm.weight"]
        assert f.weights[NAME].dequantize().tobytes() == values.tobytes()
        assert f.weights[NAME].payload.tobytes() == f[NAME].payload.tobytes() + f[f"{MODULE}.scale"].tobytes()
        assert f.weights.read(NAME, "float16").tobytes() == values.astype(np.float16).tobytes()
        for model in (f.weights, wm.open(path, mode="copy").weights):
            assert dict(wm.plan(model, {NAME: np.s_[1:]}).run())[NAME].tobytes() == values[1:].tobytes()
            assert dict(wm.plan(model, [NAME]).run())[NAME].dequantize().tobytes() == values.tobytes()
        for compute in (lambda: f.read(NAME), lambda: wm.convert(f, tmp_path / "x.safetensors", dtype="float32")):
            with pytest.raises(wm.UnsupportedError, match=rf"{MODULE}.scale.*; f\.weights"):
                compute()


@pytest.mark.parametrize(
    ("shape", "scale", "what"),
    [
        ((2, 64), np.ones((2, 1), np.float32), "shape of tensor .*scale"),
        ((2, 64), np.ones(1, np.float16), "dtype of tensor .*scale"),
        ((64,), np.ones(1, np.float32), "shape of tensor .*weight"),
        ((1, 1, 2, 64), np.ones(1, np.float32), "shape of tensor .*weight"),
    ],
)
def test_pieces_that_are_not_nvfp4_of_gguf(tmp_path, shape, scale, what):
    path = tmp_path / "x.gguf"
    gguf_nvfp4(path, shape, scale)
    with wm.open(path) as f, pytest.raises(wm.FormatError, match=what):
        f.weights[NAME]


@in_one_item("name", ["Llama 4 NVFP4", "Llama 4 FP8", "fp8 experts"])
def test_fused_experts_become_a_plain_model(tmp_path, name):
    """Their pieces go, and so does the configuration of their quantisation; `verify` checks them before."""
    example = EXAMPLES[name]()
    folder = tmp_path / name
    example.write(folder)
    assert any("parameter" in check for check in wm.verify(wm.open(folder).weights).checks)
    wm.convert(wm.open(folder).weights, f"{folder} plain/")
    assert json.loads((tmp_path / f"{name} plain" / "config.json").read_text(encoding="utf-8")) == {"dtype": "bfloat16"}
    with wm.open(tmp_path / f"{name} plain") as g:
        assert list(g) == [example.name]
        assert g[example.name].tobytes() == example.values.astype(ml_dtypes.bfloat16).tobytes()


def test_a_parameter_without_columns(tmp_path):
    """Nothing is divided by the number of its groups."""
    for name in ("gptq 4", "awq"):
        example = EXAMPLES[name]()
        example.tensors = {key: array[:0] for key, array in example.tensors.items()}
        with wm.open(example.write(tmp_path / name)) as f:
            assert f.weights[example.name].shape[1] == 0
            for suffix in (".gguf", ".amb", ".safetensors"):
                wm.convert(f.weights, tmp_path / f"x{suffix}")
                assert wm.open(tmp_path / f"x{suffix}")[example.name].size == 0


def test_what_is_not_exact_is_decoded_or_refused(tmp_path):
    """Without `quantize` the parameter is decoded; with it, an EncodeError names the parameter."""
    for name in (
        "gptq act-order",
        "awq",
        "packed 4, zeros",
        "packed by tensor",
        "nf4, nested True",
        "fp8 f32",
        "nvfp4",
    ):
        source = EXAMPLES[name]().write(tmp_path / name)
        report = wm.convert(wm.open(source).weights, tmp_path / "x.gguf")
        assert any("1 parameter decoded" in warning for warning in report.warnings)
        with wm.open(tmp_path / "x.gguf") as g, wm.open(source) as f:
            assert isinstance(g[NAME], np.ndarray)
            assert g[NAME].tobytes() == f.weights[NAME].dequantize().tobytes()
    source = EXAMPLES["awq"]().write(tmp_path / "again")
    with pytest.raises(wm.EncodeError, match="q_proj"):
        wm.convert(wm.open(source).weights, tmp_path / "z.gguf", quantize="q4_0")
    assert not (tmp_path / "z.gguf").exists()
    example = EXAMPLES["awq without zeros"]()
    example.tensors["up.weight"] = np.ones((4, 32), np.float32)
    wm.convert(wm.open(halved(example).write(tmp_path / "exact")).weights, tmp_path / "z.gguf", quantize="q4_0")
    with wm.open(tmp_path / "z.gguf") as g:
        assert {name: g[name].scheme for name in g} == {NAME: "q4_0", "up.weight": "q4_0"}
