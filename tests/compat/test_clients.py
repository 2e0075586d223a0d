"""Libraries that import safetensors, unchanged, under `weightmap.compat.patched`: bit for bit as on safetensors.

`make clients-test` runs this in its own environment. Missing libraries are skipped; models are tiny and random, and
nothing is fetched.
"""

import contextlib
import importlib
import os
import sys
import warnings

import numpy as np
import pytest

if not os.environ.get("WEIGHTMAP_CLIENTS"):
    pytest.skip("opt-in: make clients-test", allow_module_level=True)
os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

import weightmap as wm  # noqa: E402 - nothing here makes sense without torch
from weightmap import compat  # noqa: E402
from weightmap.compat import _safe_open  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
# A test that leaves something behind fails: these set variables when they are imported, and tqdm would start a thread.
with contextlib.suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    importlib.import_module("tqdm").tqdm.monitor_interval = 0
    importlib.import_module("jax")
    importlib.import_module("sentence_transformers")


@pytest.fixture
def both(tmp_path, monkeypatch):
    """Call a function once with safetensors and once with ours, each in a folder; compare results and files."""
    opened = []
    init = _safe_open.OpenedFile.__init__
    monkeypatch.setattr(
        _safe_open.OpenedFile, "__init__", lambda self, *a, **k: (opened.append(a[0]), init(self, *a, **k))[1]
    )

    def run(function, *, reads=True):
        results = []
        for name, context in (("theirs", contextlib.nullcontext()), ("ours", compat.patched())):
            folder = tmp_path / name
            folder.mkdir()
            torch.manual_seed(7)
            np.random.seed(7)  # noqa: NPY002 - for libraries that draw from it
            opened.clear()
            with context:
                results.append(plain(function(folder)))
            assert bool(opened) == (name == "ours" and reads)
        assert results[0] == results[1]
        files = [
            {str(p.relative_to(tmp_path / n)): p for p in (tmp_path / n).rglob("*.safetensors")}
            for n in ("theirs", "ours")
        ]
        assert files[0].keys() == files[1].keys()
        for name, path in files[0].items():
            assert contents(path) == contents(files[1][name]), name

    return run


def plain(value):
    """Tensors as type, shape and bytes, in dictionaries and sequences of any depth."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        return str(value.dtype), tuple(value.shape), value.reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def contents(path):
    with wm.open(path) as file:
        return {name: (array.dtype.name, array.shape, array.tobytes()) for name, array in file.items()}, dict(
            file.metadata
        )


def train(model, *args, **kwargs):
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    loss = model(*args, **kwargs)[0].float().mean()
    loss.backward()
    optimiser.step()
    return loss


def llama(**config):
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 1, "vocab_size": 64, "max_position_embeddings": 32}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape | config))


IDS = torch.arange(8).reshape(1, 8) % 7 + 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard", ["5GB", "6KB"])
def test_transformers(both, tied, shard, dtype):
    transformers = pytest.importorskip("transformers")

    def use(folder):
        model = llama(tie_word_embeddings=tied).to(getattr(torch, dtype))
        model.save_pretrained(folder / "a", max_shard_size=shard)
        loaded = transformers.LlamaForCausalLM.from_pretrained(folder / "a", dtype="auto")
        first = loaded(IDS).logits
        assert torch.equal(first, model(IDS).logits)
        loss = train(loaded, IDS, labels=IDS)
        loaded.save_pretrained(folder / "a", max_shard_size=shard)
        again = transformers.LlamaForCausalLM.from_pretrained(folder / "a", dtype="auto")
        return first, loss, loaded.state_dict(), again(IDS).logits, again.state_dict()

    both(use)


def experts(name):
    """A model whose experts are one parameter; Hugging Face stores them one by one, or transposed."""
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 24, "num_hidden_layers": 1}
    shape |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 64, "num_experts": 4}
    if name == "Qwen3Moe":
        return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**shape))
    eyes = {"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 16}
    eyes |= {"num_position_embeddings": 4, "deepstack_visual_indexes": [0]}
    config = transformers.Qwen3VLMoeConfig(text_config=shape, vision_config=eyes)
    return transformers.Qwen3VLMoeForConditionalGeneration(config)


@pytest.mark.parametrize("name", ["Qwen3Moe", "Qwen3VLMoe"])
def test_files_with_other_names_or_shapes_than_the_model(both, name):
    """`from_pretrained` converts them; `load_into` refuses them, and names it."""

    def use(folder):
        model = experts(name)
        model.save_pretrained(folder)
        stored = wm.load(folder / "model.safetensors", mode="copy")
        fused = {key: np.swapaxes(value, 1, 2) for key, value in stored.items() if value.ndim == 3}
        wm.save(folder / "model.safetensors", stored | fused, metadata={"format": "pt"})
        loaded = type(model).from_pretrained(folder).state_dict()
        assert plain(loaded) == plain(model.state_dict())
        assert bool(fused) == (name == "Qwen3VLMoe")
        with pytest.raises(wm.torch.StateError, match=r"`from_pretrained` within `weightmap\.compat\.patched\(\)`"):
            wm.torch.load_into(experts(name), folder)
        return loaded

    both(use)


def test_accelerate(both):
    accelerate = pytest.importorskip("accelerate")
    from accelerate.utils import load_state_dict, save, set_module_tensor_to_device

    def use(folder):
        model = llama()
        accelerate.Accelerator(cpu=True).save_model(model, folder / "a", max_shard_size="6KB")
        with accelerate.init_empty_weights():
            empty = llama()
        layers = {"model.layers.0": "disk", "model.layers.1": "cpu"}
        places = layers | dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
        loaded = accelerate.load_checkpoint_and_dispatch(
            empty, folder / "a", device_map=places, offload_folder=folder / "off", dtype=torch.float32
        )
        logits = loaded(IDS).logits
        save({"x": torch.ones(3, dtype=torch.bfloat16)}, folder / "x.safetensors", safe_serialization=True)
        state = load_state_dict(str(folder / "x.safetensors"))
        with accelerate.init_empty_weights():
            layer = torch.nn.Linear(3, 1, bias=False)
        set_module_tensor_to_device(layer, "weight", "cpu", value=state["x"].reshape(1, 3).float())
        return logits, state, layer.weight

    both(use)


def test_peft(both, monkeypatch):
    monkeypatch.setitem(sys.modules, "gptqmodel", None)  # peft would import it, and its threads would outlive the test
    peft = pytest.importorskip("peft")

    def use(folder):
        base = llama()
        model = peft.get_peft_model(
            base, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        )
        loss = train(model, IDS, labels=IDS)
        model.save_pretrained(folder / "lora")
        torch.manual_seed(7)
        loaded = peft.PeftModel.from_pretrained(llama(), folder / "lora")
        merged = loaded.merge_and_unload()
        return loss, merged(IDS).logits

    both(use)


def test_diffusers(both):
    diffusers = pytest.importorskip("diffusers")

    def use(folder):
        shape = {"sample_size": 8, "in_channels": 1, "out_channels": 1, "norm_num_groups": 4}
        shape["block_out_channels"] = (8, 8)
        kinds = {"down_block_types": ("DownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "UpBlock2D")}
        net = diffusers.UNet2DModel(layers_per_block=1, **shape, **kinds)
        pipeline = diffusers.DDPMPipeline(unet=net, scheduler=diffusers.DDPMScheduler(num_train_timesteps=10))
        pipeline.save_pretrained(folder / "a")
        loaded = diffusers.DDPMPipeline.from_pretrained(folder / "a")
        alone = diffusers.UNet2DModel.from_pretrained(folder / "a" / "unet")
        noise = torch.ones(1, 1, 8, 8)
        first = alone(noise, 1).sample
        loss = train(alone, noise, 1, return_dict=False)
        alone.save_pretrained(folder / "b")
        image = loaded(num_inference_steps=2, generator=torch.manual_seed(1), output_type="np").images
        return first, loss, alone.state_dict(), image

    both(use)


def encoder(folder):
    """Save a tiny encoder of sentences that pools, then projects."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "short", "sentence", "another", "one"]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    tokenizer = transformers.BertTokenizerFast(vocab=dict(zip(words, range(len(words)), strict=True)))
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **shape))
    model.save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    parts = importlib.import_module("sentence_transformers.models")
    word = parts.Transformer(str(folder / "bert"))
    pooling = parts.Pooling(16)
    whole = sentence_transformers.SentenceTransformer(modules=[word, pooling, parts.Dense(16, 4)], device="cpu")
    whole.save(str(folder / "st"))
    return folder / "st"


def encoded(folder):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    loaded = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    return loaded.encode(["a short sentence", "another one"])


def test_sentence_transformers(both):
    both(lambda folder: encoded(encoder(folder)))


WRITTEN = ["safetensors", "gguf", "embd", "amb", "bintensors"]


@pytest.fixture
def sharded(tmp_path):
    torch.manual_seed(7)
    model = llama().to(torch.bfloat16)
    model.save_pretrained(tmp_path / "a", max_shard_size="6KB")
    return tmp_path / "a", model(IDS).logits


def answer(folder, **options):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)(IDS).logits


@pytest.mark.parametrize("format_", WRITTEN)
def test_a_converted_directory_is_loaded(sharded, tmp_path, format_):
    """safetensors directly, every format within the block: shards, one shard, and a directory converted back."""
    folder, logits = sharded
    assert wm.convert(folder, f"{tmp_path}/b/", format=format_, names="keep").shards > 1
    assert not wm.convert(folder / "model.safetensors.index.json", tmp_path / "one.safetensors").warnings
    wm.convert(tmp_path / "one.safetensors", f"{tmp_path}/c/", format=format_)
    (tmp_path / "c" / "config.json").write_bytes((folder / "config.json").read_bytes())
    wm.convert(tmp_path / "b", f"{tmp_path}/back/", format="safetensors")
    assert torch.equal(answer(tmp_path / "back"), logits)
    if format_ == "safetensors":  # with the metadata that transformers asks for
        assert torch.equal(answer(tmp_path / "b"), logits)
        assert torch.equal(answer(tmp_path / "c"), logits)
    else:
        with pytest.raises(OSError, match=r"no file named model\.safetensors"):
            answer(tmp_path / "b")
    with compat.patched():
        for name in ("b", "c", "back"):
            assert torch.equal(answer(tmp_path / name), logits)
            assert torch.equal(answer(tmp_path, subfolder=name), logits)
        with pytest.raises(OSError, match=r"no file named model\.safetensors"):
            answer(tmp_path / "b", use_safetensors=False)


@pytest.mark.parametrize("format_", WRITTEN)
def test_accelerate_loads_a_converted_directory(sharded, tmp_path, format_):
    """It finds an index of any name, and loads shards by `torch.load`, safetensors directly."""
    accelerate = pytest.importorskip("accelerate")
    folder, logits = sharded
    wm.convert(folder, f"{tmp_path}/b/", format=format_, names="keep")
    with compat.patched() if format_ != "safetensors" else contextlib.nullcontext():
        with accelerate.init_empty_weights():
            empty = llama().to(torch.bfloat16)
        loaded = accelerate.load_checkpoint_and_dispatch(empty, tmp_path / "b", device_map={"": "cpu"})
    assert torch.equal(loaded(IDS).logits, logits)


def test_quantised_tensors_are_decoded(sharded, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(7)
    model = llama(hidden_size=64, intermediate_size=64)
    model.save_pretrained(tmp_path / "wide")
    report = wm.convert(tmp_path / "wide", f"{tmp_path}/q/", format="gguf", quantize="q8_0", names="keep")
    assert report.quantized
    with compat.patched():
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "q")
    with wm.open(tmp_path / "q") as file:
        for name, tensor in loaded.state_dict().items():
            assert torch.equal(tensor, torch.from_numpy(file.read(name, np.float32))), name
    assert loaded.dtype is torch.float32
