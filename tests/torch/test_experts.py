"""Tiny random mixtures of experts of transformers on a pool: logits are those of resident experts, to the bit.

`make experts-test` runs this in its own environment, with transformers 5, which stacks experts, and with 4.
"""

import os
import threading

import pytest

import weightmap as wm

if not os.environ.get("WEIGHTMAP_EXPERTS"):
    pytest.skip("opt-in: make experts-test", allow_module_level=True)
os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")

from transformers import (  # noqa: E402
    Llama4ForCausalLM,
    Llama4TextConfig,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.utils import logging  # noqa: E402

from weightmap.torch import StateError, load_into, serve_experts  # noqa: E402

torch.set_num_threads(1)
logging.disable_progress_bar()  # it would leave a thread behind
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_experts_per_tok": 2,
}  # fmt: skip
MODELS = {
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=8)),
    "qwen3": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, num_experts=8, moe_intermediate_size=40, head_dim=8)),
}
TYPES = [torch.float32, torch.bfloat16]
# Room for a quarter of the experts, and for one token's experts of a layer.
BUDGET = 12 * 8192
TOKENS = torch.arange(18).reshape(2, 9) * 7 % 64


def model(name, dtype=torch.float32):
    torch.manual_seed(0)
    made = MODELS[name]().eval().to(dtype)
    if hasattr(made, "set_experts_implementation"):
        made.set_experts_implementation("eager")
    return made


def logits(made):
    with torch.no_grad():
        return made(TOKENS).logits


@pytest.mark.parametrize("stored", ["as transformers saves it", "as its state"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", list(MODELS))
def test_logits_are_those_of_resident_experts(tmp_path, name, dtype, stored):
    resident, served = model(name, dtype), model(name, dtype)
    if stored == "as its state":
        wm.save(tmp_path / "model.safetensors", resident.state_dict())
    else:
        resident.save_pretrained(tmp_path)
    with wm.open(tmp_path / "model.safetensors") as file, file.pool(BUDGET) as pool:
        serve_experts(served, pool)
        assert not [key for key in served.state_dict() if ".experts." in key]
        for _ in range(2):
            assert torch.equal(logits(served), logits(resident))
        made = [m.generate(TOKENS[:1], max_new_tokens=6, do_sample=False, pad_token_id=0) for m in (resident, served)]
        assert torch.equal(*made)
        stats = pool.stats
        assert stats.held_nbytes == 0
        assert stats.resident_nbytes <= BUDGET
        assert stats.evictions > 0


@pytest.mark.parametrize("name", list(MODELS))
def test_experts_of_another_type_are_converted(tmp_path, name):
    resident, served = model(name), model(name)
    half = {key: value.to(torch.bfloat16) for key, value in resident.state_dict().items()}
    wm.save(tmp_path / "m.safetensors", half)
    resident.load_state_dict(half)
    with wm.open(tmp_path / "m.safetensors") as file, file.pool(1 << 20) as pool:
        served.load_state_dict(half)
        serve_experts(served, pool)
        assert torch.equal(logits(served), logits(resident))


@pytest.mark.parametrize("name", list(MODELS))
def test_quantised_experts_are_decoded(tmp_path, name):
    resident, served = model(name), model(name)
    wm.save(tmp_path / "m.safetensors", resident.state_dict())
    wm.convert(tmp_path / "m.safetensors", tmp_path / "q.gguf", quantize="q8_0")
    load_into(resident, tmp_path / "q.gguf")
    load_into(served, tmp_path / "q.gguf")
    with wm.open(tmp_path / "q.gguf") as file, file.pool(1 << 20) as pool:
        serve_experts(served, pool)
        assert torch.equal(logits(served), logits(resident))


def test_threads_share_a_model(tmp_path):
    resident, served = model("qwen3"), model("qwen3")
    resident.save_pretrained(tmp_path)
    expected, failed = logits(resident), []

    def work():
        try:
            for _ in range(4):
                assert torch.equal(logits(served), expected)
        except BaseException as error:  # noqa: BLE001 - seen by the test
            failed.append(error)

    with wm.open(tmp_path) as file, file.pool(4 * BUDGET) as pool:
        serve_experts(served, pool)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed


def test_what_does_not_fit_leaves_the_module_unchanged(tmp_path):
    resident, served = model("mixtral"), model("mixtral")
    state = resident.state_dict()
    wm.save(tmp_path / "few.safetensors", {key: value for key, value in state.items() if "layers.1" not in key})
    wrong = {key: value[..., :-1] if "experts" in key else value for key, value in state.items()}
    wm.save(tmp_path / "wrong.safetensors", wrong)
    for file_name, error in (("few", wm.TensorNotFoundError), ("wrong", StateError)):
        with wm.open(tmp_path / f"{file_name}.safetensors") as file, file.pool(1 << 20) as pool:
            with pytest.raises(error, match="experts"):
                serve_experts(served, pool)
            with pytest.raises(wm.UnsupportedError, match="modules called experts"):
                serve_experts(torch.nn.Linear(2, 2), pool)
            with pytest.raises(wm.UnsupportedError, match="ModuleList of modules of"):
                serve_experts(torch.nn.ModuleDict({"experts": torch.nn.Sequential(torch.nn.Linear(2, 2))}), pool)
    assert torch.equal(logits(served), logits(resident))


def test_experts_that_compute_together_are_refused(tmp_path):
    config = Llama4TextConfig(**SIZES, intermediate_size_mlp=48, num_local_experts=4, head_dim=8)
    served = Llama4ForCausalLM(config).eval()
    wm.save(tmp_path / "m.safetensors", served.state_dict())
    with wm.open(tmp_path / "m.safetensors") as file, file.pool(1 << 20) as pool:
        serve_experts(served, pool)
        with pytest.raises(wm.UnsupportedError, match=r"Llama4TextExperts, expected one that takes them one by one"):
            logits(served)
        assert pool.stats.held_nbytes == 0
