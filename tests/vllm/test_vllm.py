"""The load format of vLLM and the loader of SGLang, on stand-ins for their base classes.

Files, settings, filters, order and errors are real. test_vllm_server.py tests that servers compute the same.
"""

import subprocess
import sys
import types
from dataclasses import dataclass, field
from importlib import import_module

import numpy as np
import pytest

import weightmap as wm
from weightmap.errors import LayoutError, NotRegularFileError, TruncatedError, UnknownFormatError

ours = import_module("weightmap.vllm")

SUFFIXES = {"safetensors": ".safetensors", "embd": ".weights", "bintensors": ".bt", "amb": ".amb", "gguf": ".gguf"}


@dataclass
class LoadConfig:
    """What both servers call by this name."""

    model_loader_extra_config: dict = field(default_factory=dict)
    load_format: str = "weightmap"
    draft_model_idx: int | None = None


class Stock:
    """The stock loader of vLLM, as far as ours uses it."""

    local_expert_ids = None
    _encoder_only_lm_prefixes = None
    _encoder_only_weights_mapper = None

    def __init__(self, load_config):
        assert set(load_config.model_loader_extra_config) <= {"enable_weights_track"}
        self.load_config = load_config

    def create_model(self, *, vllm_config, model_config, prefix):
        return model_config

    def load_weights(self, model, model_config):
        """Nothing is loaded."""

    def _prepare_weights(self, model, subfolder, revision, fall_back_to_pt, allow_patterns_overrides):
        assert self.load_config.load_format == "safetensors"
        return "downloaded", ["m-10.safetensors", "m-9.safetensors"], True, "index.json"


@dataclass
class Source:
    model_or_path: str
    prefix: str = ""
    subfolder: str | None = None
    revision: str | None = None
    fall_back_to_pt: bool = True
    allow_patterns_overrides: list | None = None
    is_unused_weight: object = None


class Sglang(Stock):
    """The stock loader of SGLang; the last argument of a filter is the layer."""

    @classmethod
    def _filter_mtp_weights(cls, weights, prefix, layer):
        return ((f"{prefix}{name}@{layer}", tensor) for name, tensor in weights)


@pytest.fixture
def registered(monkeypatch):
    """Put stand-ins in the place of vllm and sglang; tensors stay arrays, so that no torch is needed."""
    calls = []

    def outside():
        raise AssertionError("world group is not initialized")

    def module(name, **names):
        made = types.ModuleType(name)
        vars(made).update(names)
        made.__path__ = []
        monkeypatch.setitem(sys.modules, name, made)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, made)

    def skip(name, experts):
        return experts is not None and ".experts." in name and int(name.split(".")[-2]) not in experts

    def remember(name):
        return lambda loader: calls.append((name, loader))

    module("vllm")
    module("vllm.model_executor")
    module("vllm.model_executor.model_loader", register_model_loader=remember)
    module("vllm.model_executor.model_loader.default_loader", DefaultModelLoader=Stock)
    module("vllm.model_executor.model_loader.ep_weight_filter", should_skip_weight=skip)
    module(
        "vllm.model_executor.model_loader.weight_utils",
        filter_mm_encoder_only_safetensors_files=lambda files, folder, index, prefixes, weights_mapper: files[1:],
    )
    module("vllm.distributed")
    module("vllm.distributed.parallel_state", get_world_group=outside, get_node_count=outside, get_tp_group=outside)
    module("sglang")
    module("sglang.srt")
    module("sglang.srt.model_loader")
    module("sglang.srt.model_loader.loader", DefaultModelLoader=Sglang)
    module("sglang.srt.plugins")
    module(
        "sglang.srt.plugins.hook_registry",
        HookRegistry=types.SimpleNamespace(register=lambda *hook: calls.append(hook)),
        HookType=types.SimpleNamespace(AROUND="around"),
    )
    monkeypatch.setattr(ours, "read_tensor", lambda file, name, array: array)
    cached = (ours.register, ours.loader_class, ours.register_sglang, ours.sglang_loader_class)
    for function in cached:
        function.cache_clear()
    yield calls
    for function in cached:
        function.cache_clear()


def loader(**extra):
    return ours.loader_class()(LoadConfig(extra))


def arrays(*names):
    return {name: np.full((4, 8), number, np.float32) for number, name in enumerate(names)}


def sharded(folder):
    """A model of ten shards with an index, whose names do not sort as their numbers, and a copy in one file.

    In each shard b lies before a: safetensors puts larger types first.
    """
    where = {}
    for number in range(1, 11):
        shard = {f"b.{number}": np.zeros(2, np.float32), f"a.{number}": np.ones(2, np.float16)}
        wm.save(folder / f"model-{number}.safetensors", shard)
        where |= dict.fromkeys((f"b.{number}", f"a.{number}"), f"model-{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(str({"metadata": {}, "weight_map": where}).replace("'", '"'))
    wm.save(folder / "consolidated.safetensors", arrays("a.1", "b.1"))


def test_both_servers_find_it(registered):
    for _ in range(2):
        ours.register()
        ours.register_sglang()
    assert [call[0] for call in registered] == ["weightmap", "sglang.srt.model_loader.loader.get_model_loader"]
    assert issubclass(registered[0][1], Stock)


def test_importing_loads_no_server():
    code = "import sys, weightmap.vllm; print({'vllm', 'sglang', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize("kind", SUFFIXES)
def test_tensors_come_in_the_order_of_bytes_with_their_names(registered, tmp_path, kind):
    expected = arrays("model.z.weight", "model.a.weight", "lm_head.weight")
    path = tmp_path / f"model{SUFFIXES[kind]}"
    wm.save(path, expected)
    got = dict(loader()._get_weights_iterator(Source(str(tmp_path), prefix="p.")))
    with wm.plan(str(path)) as plan:
        assert list(got) == [f"p.{name}" for name in plan.names]
    assert {name: array.tobytes() for name, array in got.items()} == {
        f"p.{name}": array.tobytes() for name, array in expected.items()
    }


def test_shards_come_by_number_and_copies_are_left_out(registered, tmp_path):
    sharded(tmp_path)
    names = [name for name, _ in loader()._get_weights_iterator(Source(str(tmp_path)))]
    assert names == [f"{letter}.{number}" for number in range(1, 11) for letter in "ba"]


def test_filters_are_those_of_the_stock_loader(registered, tmp_path):
    sharded(tmp_path)
    made = loader()
    only = Source(str(tmp_path), is_unused_weight=lambda name: not name.endswith(".3"))
    assert [name for name, _ in made._get_weights_iterator(only)] == ["b.3", "a.3"]
    none = Source(str(tmp_path), is_unused_weight=lambda name: True)
    assert len(list(made._get_weights_iterator(none))) == 20
    made._encoder_only_lm_prefixes = ("language.",)
    assert next(made._get_weights_iterator(Source(str(tmp_path))))[0] == "b.2"


def test_experts_of_other_ranks_are_not_read(registered, tmp_path):
    wm.save(tmp_path / "model.weights", arrays("m.experts.0.w", "m.experts.1.w", "m.gate"))
    made = loader()
    made.local_expert_ids = {1}
    assert [name for name, _ in made._get_weights_iterator(Source(str(tmp_path)))] == ["m.experts.1.w", "m.gate"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"thread": 1, "treads": 2}, "'thread', 'treads'; load format weightmap knows mode, verify, threads"),
        ({"mode": "map"}, "mode is 'map', expected one of mmap, cow, copy, sealed, direct"),
        ({"verify": True}, "verify is True, expected one of header, full, none"),
        ({"threads": -1}, "threads is -1, expected a number, 0 for none"),
        ({"threads": True}, "threads is True"),
        ({"upload": 1}, "upload is 1, expected True or False"),
    ],
)
def test_wrong_settings_are_one_error(registered, extra, message):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        loader(**extra)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("device", "quantization", "mode", "writable"),
    [("cpu", None, None, True), ("cuda", None, None, False), ("cpu", "fp8", None, False), ("cuda", None, "cow", True)],
)
def test_tensors_share_pages_only_with_plain_parameters_of_the_cpu(
    registered, tmp_path, monkeypatch, device, quantization, mode, writable
):
    """Others get copies of read-only arrays; a mode in the settings decides."""
    monkeypatch.delenv("WEIGHTMAP_MODE", raising=False)
    wm.save(tmp_path / "model.weights", arrays("w"))
    made = loader(upload=False, **({"mode": mode} if mode else {}))
    parameter = types.SimpleNamespace(device=types.SimpleNamespace(type=device))
    model = types.SimpleNamespace(parameters=lambda: [parameter])
    made.load_weights(model, types.SimpleNamespace(quantization=quantization))
    ((_, array),) = made._get_weights_iterator(Source(str(tmp_path)))
    assert array.flags.writeable == writable


def test_what_is_no_directory_is_downloaded_as_safetensors(registered):
    folder, files, *_ = loader()._prepare_weights("org/model", None, None, True, None)
    assert (folder, files) == ("downloaded", ["m-9.safetensors", "m-10.safetensors"])


def test_directories_that_are_no_model_are_errors(registered, tmp_path):
    with pytest.raises(NotRegularFileError, match=r"no model file \(\.safetensors, \.weights, \.bt, \.amb, \.gguf\)"):
        ours.model_files(str(tmp_path))
    wm.save(tmp_path / "model.weights", arrays("w"))
    wm.save(tmp_path / "model.amb", arrays("w"))
    with pytest.raises(UnknownFormatError, match=r"several formats: 'model\.weights', 'model\.amb'"):
        ours.model_files(str(tmp_path))
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors.index.json").write_text("{}")
    with pytest.raises(UnknownFormatError, match="several indices of shards"):
        ours.model_files(str(tmp_path))


def test_damaged_and_missing_shards_are_our_errors(registered, tmp_path):
    sharded(tmp_path)
    path = tmp_path / "model-7.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-4])
    with pytest.raises(TruncatedError, match=r"model-7\.safetensors"):
        list(loader()._get_weights_iterator(Source(str(tmp_path))))
    path.unlink()
    with pytest.raises(LayoutError, match=r"model-7\.safetensors"):
        list(loader()._get_weights_iterator(Source(str(tmp_path))))


def test_sglang_uses_it_where_the_configuration_says_so(registered, tmp_path):
    """The key "weightmap" holds the settings; without it the stock function decides, and the object stays as it is."""
    sharded(tmp_path)
    plain = LoadConfig({})
    assert ours.choose_sglang_loader(lambda config, model: (config, model), plain, 7) == (plain, 7)
    config = LoadConfig({"weightmap": {"threads": 0}})
    made = ours.choose_sglang_loader(None, config)
    assert config.model_loader_extra_config == {"weightmap": {"threads": 0}}
    _, files, reads_ahead = made._prepare_weights(str(tmp_path), None, True, None)
    assert reads_ahead is False
    names = [name for name, _ in made._get_weights_iterator(Source(str(tmp_path), prefix="p."))]
    assert names[:2] == ["p.b.1", "p.a.1"]
    resolved = types.SimpleNamespace(weight_files=tuple(files[1:]))
    made.load_config.draft_model_idx = 4
    rest = made._get_weights_iterator(Source(str(tmp_path)), resolved_source=resolved)
    assert next(rest)[0] == "b.2@4"
    with pytest.raises(NotRegularFileError, match="download the model first"):
        made._prepare_weights("org/model", None)


def test_deltas_are_loaded_over_the_model(registered, tmp_path):
    """The newest version, or the path's version; over a full version; in both servers."""
    import_module("zstandard")
    states = [arrays("a", "b", "c")]
    folder, source = tmp_path / "model", tmp_path / "source"
    folder.mkdir()
    wm.save(folder / "model.safetensors", states[0], max_shard_size=150)
    for version in (1, 2, 3):
        states.append({**states[-1], "b": states[-1]["b"] + version})
        for number in (version - 1, version):
            wm.save(tmp_path / f"{number}.safetensors", states[number])
        how = {"version": version, "full": version == 3}
        wm.deltas.publish(tmp_path / f"{version - 1}.safetensors", tmp_path / f"{version}.safetensors", source, **how)
    for given, version in ((source / "weight_v000002", 2), (source / "weight_v000001", 1), (source, 3)):
        config = {"deltas": str(given)}
        for made, where in (
            (loader(**config), Source(str(folder), is_unused_weight=lambda name: name == "c")),
            (ours.sglang_loader_class()(LoadConfig(config)), Source(str(folder))),
        ):
            found = dict(made._get_weights_iterator(where))
            assert {name: array.tolist() for name, array in found.items()} == {
                name: array.tolist() for name, array in states[version].items()
            }
    with pytest.raises(wm.DeltaError, match="000009"):
        dict(loader(deltas=str(source / "weight_v000009"))._get_weights_iterator(Source(str(folder))))
