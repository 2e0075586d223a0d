"""Models of transformers as GGUF in llama.cpp itself: generated tokens, its own converter, its mixtures.

make llama-test runs this: llama.cpp is compiled once, and transformers makes tiny random models of each architecture.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.llama import models

import weightmap as wm

SOURCES = os.environ.get("WEIGHTMAP_LLAMA")
if not SOURCES:
    pytest.skip("make llama-test runs this, in an environment of its own", allow_module_level=True)

gguf, llama_cpp, torch, transformers, tqdm = map(
    pytest.importorskip, ("gguf", "llama_cpp", "torch", "transformers", "tqdm")
)
tqdm.tqdm.monitor_interval = 0  # a thread of its progress bars, which would stay

TRUTH = Path(models.__file__).parent / "groundtruth"
PROMPT = [70, 30, 57, 74, 58, 241, 100, 176, 16, 32]
TOKENS = 64
CONFIG = {
    "vocab_size": models.VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": 512, "initializer_range": 0.2,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16}
MODELS = {
    "LlamaForCausalLM": {
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "MistralForCausalLM": {"head_dim": 32, "sliding_window": None},
    "MixtralForCausalLM": {"num_local_experts": 12, "num_experts_per_tok": 2, "sliding_window": None},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {"head_dim": 32, "tie_word_embeddings": True},
    "Qwen3MoeForCausalLM": {
        "head_dim": 32,
        "num_experts": 12,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "Gemma2ForCausalLM": GEMMA,
    "Gemma3ForCausalLM": {**GEMMA, "num_hidden_layers": 7},
}


# Architectures that only the script knows.
OTHERS = {
    "Glm4MoeForCausalLM": {
        "head_dim": 32,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
    "Gemma3nForCausalLM": {
        "head_dim": 32,
        "num_hidden_layers": 5,
        "vocab_size_per_layer_input": models.VOCAB,
        "hidden_size_per_layer_input": 32,
        "laurel_rank": 16,
        "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.0] * 5,
        "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
    },
    "GptOssForCausalLM": {"head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 64},
}


def made(folder, name, dtype=torch.float32):
    """Return a random model of transformers, written to a folder beside a tokenizer."""
    torch.manual_seed(3)
    config_class = getattr(transformers, name.replace("ForCausalLM", "TextConfig" if "Gemma3" in name else "Config"))
    config = config_class(**(CONFIG | (MODELS | OTHERS)[name]))
    config.architectures = [name]
    model = getattr(transformers, name)(config).eval().to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms and biases, which begin as ones and zeros
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    if name.startswith("Gemma"):
        (folder / "tokenizer.model").write_bytes((TRUTH / "gemma2" / "tokenizer.model").read_bytes())
        (folder / "tokenizer_config.json").write_bytes((TRUTH / "gemma2" / "tokenizer_config.json").read_bytes())
    else:
        tokenizer = models.tokenizer()
        if name.startswith("Glm"):
            special = ("[gMASK]", "<|user|>", "<|observation|>")
            tokenizer["added_tokens"] += [
                {**tokenizer["added_tokens"][-1], "id": models.VOCAB + i, "content": content, "special": True}
                for i, content in enumerate(special)
            ]
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
        # transformers would add tokens of its own class.
        settings = {**models.SETTINGS, "tokenizer_class": "PreTrainedTokenizerFast"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return model


@pytest.fixture(autouse=True, scope="module")
def _plain_kernels():
    """On CPUs with AMX, llama.cpp's repacked weights end the process, also from its own quantiser."""
    low = sys.modules["llama_cpp.llama_cpp"]
    usual = low.llama_model_default_params

    def plain():
        parameters = usual()
        parameters.use_extra_bufts = False
        return parameters

    low.llama_model_default_params = plain
    yield
    low.llama_model_default_params = usual


def loaded(path):
    return llama_cpp.Llama(str(path), n_ctx=256, n_threads=2, logits_all=True, verbose=False)


def generated(path):
    """The tokens that llama.cpp generates greedily, and the logits behind the prompt."""
    llm = loaded(path)
    llm.eval(PROMPT)
    first = np.array(llm.scores[len(PROMPT) - 1])
    found = []
    for _ in range(TOKENS):
        found.append(int(np.argmax(llm.scores[llm.n_tokens - 1])))
        llm.eval(found[-1:])
    llm.close()
    return found, first


def errors_of(full, *others):
    """The root mean square of differences from others' logits, over all positions of some random texts."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(3, 259, 40).tolist() for _ in range(4)]

    def logits(path):
        llm, found = loaded(path), []
        for tokens in texts:
            llm.reset()
            llm.eval(tokens)
            found.append(np.array(llm.scores[: len(tokens)]))
        llm.close()
        return np.concatenate(found)

    wanted = logits(full)
    return [float(np.sqrt(np.mean((logits(path) - wanted) ** 2)) / wanted.std()) for path in others]


def by_transformers(model):
    """The same by transformers."""
    found = list(PROMPT)
    with torch.no_grad():
        first = model(torch.tensor([found])).logits[0, -1].numpy()
        for _ in range(TOKENS):
            found.append(int(model(torch.tensor([found])).logits[0, -1].argmax()))
    return found[len(PROMPT) :], first


def by_their_converter(folder, *outs, patched=False):
    """Run llama.cpp's script for each file, named by its type; the hash of the tokenizer gets a known answer."""
    program = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
import conversion.base as base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "llama-bpe"
import runpy
_, script, model, *outs = sys.argv
for out in outs:
    dtype, _, split = out.rpartition("/")[2].removesuffix(".gguf").partition("-")
    sys.argv = [script, model, "--outfile", out, "--outtype", dtype, "--split-max-tensors", split or "0"]
    runpy.run_path(script + "/convert_hf_to_gguf.py", run_name="__main__")
"""
    script = folder / "script.py"
    script.write_text(program, encoding="utf-8")
    command = [sys.executable, *["-m", "weightmap.compat.gguf"][: 2 * patched], script, SOURCES, folder, *outs]
    path = os.pathsep.join((SOURCES + "/gguf-py", os.environ.get("PYTHONPATH", "")))
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen3MoeForCausalLM", "Gemma2ForCausalLM", *OTHERS])
def test_their_script_within_patched_writes_the_same_files(tmp_path, name):
    made(tmp_path / "model", name, torch.bfloat16)
    names = [f"{dtype}{split}.gguf" for dtype in ("f32", "f16", "bf16", "q8_0") for split in ("", "-7")]
    for which in ("theirs", "ours"):
        (tmp_path / which).mkdir()
        outs = [tmp_path / which / file for file in names]
        by_their_converter(tmp_path / "model", *outs, patched=which == "ours")
    ours, theirs = ({path.name: path for path in (tmp_path / which).iterdir()} for which in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert len(ours) > len(names)
    for file, path in ours.items():
        assert path.read_bytes() == theirs[file].read_bytes(), file


@pytest.mark.parametrize("name", MODELS)
def test_the_tokens_of_transformers(tmp_path, name):
    folder = tmp_path / "model"
    model = made(folder, name)
    report = wm.convert(folder, tmp_path / "x.gguf", names="llama.cpp")
    assert report.warnings == ()
    wanted, logits = by_transformers(model)
    found, first = generated(tmp_path / "x.gguf")
    np.testing.assert_allclose(first, logits, atol=2e-3 * np.abs(logits).max())
    assert found == wanted
    (tmp_path / "parts").mkdir()
    wm.convert(folder, tmp_path / "parts" / "x.gguf", max_shard_size=100_000)
    parts = sorted((tmp_path / "parts").glob("*.gguf"))
    assert len(parts) > 1
    assert generated(parts[0])[0] == wanted


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_the_file_of_their_converter(tmp_path, name, dtype):
    folder = tmp_path / "model"
    made(folder, name)
    by_their_converter(folder, tmp_path / f"{dtype}.gguf")
    wm.convert(folder, tmp_path / "ours.gguf", dtype={"f32": "fp32", "f16": "fp16", "bf16": "bf16"}[dtype])
    ours, theirs = (gguf.GGUFReader(tmp_path / f"{which}.gguf") for which in ("ours", dtype))
    found, wanted = ({tensor.name: tensor for tensor in reader.tensors} for reader in (ours, theirs))
    assert set(found) == set(wanted)
    for key, tensor in wanted.items():
        assert (found[key].tensor_type, list(found[key].shape)) == (tensor.tensor_type, list(tensor.shape)), key
        if key == "rope_freqs.weight":
            np.testing.assert_array_max_ulp(found[key].data, tensor.data, 2)
        else:
            assert found[key].data.tobytes() == tensor.data.tobytes(), key
    free = ("GGUF.", "general.name", "general.basename", "general.finetune", "general.sampling")
    mine, others = (
        {key: (field.types, field.contents()) for key, field in reader.fields.items() if not key.startswith(free)}
        for reader in (ours, theirs)
    )
    different = {key: (mine.get(key), others.get(key)) for key in mine | others if mine.get(key) != others.get(key)}
    silent = {key for key, (one, other) in different.items() if one is None and other is not None and other[1] is False}
    stated = {
        key for key, (one, other) in different.items() if other is None and key.endswith(("key_length", "value_length"))
    }
    assert different.keys() <= silent | stated, different


def types_of_both(folder):
    """The types of tensors in ours.gguf, and in theirs.gguf, which llama.cpp makes of full.gguf by the same mixture."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = wm.open(folder / "ours.gguf").metadata["general.file_type"]
    files = (str(folder / "full.gguf").encode(), str(folder / "theirs.gguf").encode())
    assert llama_cpp.llama_model_quantize(*files, parameters) == 0
    readers = [gguf.GGUFReader(folder / f"{which}.gguf") for which in ("ours", "theirs")]
    return [{tensor.name: tensor.tensor_type.name for tensor in reader.tensors} for reader in readers]


@pytest.mark.parametrize("mixture", ["q4_k_m", "q4_k_s", "q5_k_m", "q5_k_s", "q3_k_m", "q3_k_l", "q3_k_s"])
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen3ForCausalLM", "MixtralForCausalLM"])
def test_mixtures_are_those_of_llama_cpp(tmp_path, name, mixture):
    folder = tmp_path / "model"
    changes = {"num_local_experts": 8} if name == "MixtralForCausalLM" else {}
    # Weights as small as initial ones: larger weights make random logits.
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 9, "initializer_range": 0.02}
    torch.manual_seed(3)
    config_class = getattr(transformers, name.replace("ForCausalLM", "Config"))
    config = config_class(**(CONFIG | MODELS[name] | sizes | {"head_dim": 64} | changes))
    config.architectures = [name]
    model = getattr(transformers, name)(config).eval().float()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(models.tokenizer()), encoding="utf-8")
    wm.convert(folder, tmp_path / "full.gguf")
    wm.convert(folder, tmp_path / "ours.gguf", quantize=mixture)
    ours, theirs = types_of_both(tmp_path)
    assert ours == theirs
    found, wanted = errors_of(*(tmp_path / f"{which}.gguf" for which in ("full", "ours", "theirs")))
    assert found <= 1.05 * wanted


@pytest.mark.parametrize("mixture", ["q3_k_m", "q4_k_m", "q5_k_m"])
def test_mixtures_of_rows_that_are_not_whole_blocks(tmp_path, mixture):
    sizes = {"hidden_size": 224, "intermediate_size": 224, "num_hidden_layers": 9}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(CONFIG | sizes)))
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(models.tokenizer()), encoding="utf-8")
    wm.convert(tmp_path / "model", tmp_path / "full.gguf")
    wm.convert(tmp_path / "model", tmp_path / "ours.gguf", quantize=mixture)
    ours, theirs = types_of_both(tmp_path)
    assert ours == {name: "IQ4_NL" if kind == "Q4_0" else kind for name, kind in theirs.items()}
    assert ("Q4_0" in theirs.values()) is (mixture == "q3_k_m")


@pytest.mark.parametrize("name", ["llama_gqa", "gemma2", "qwen3moe"])
def test_ids_of_texts_and_logits_of_the_ground_truth(tmp_path, name):
    wm.convert(TRUTH / name, tmp_path / "x.gguf")
    said = json.loads((TRUTH / "expected.json").read_text(encoding="utf-8"))[name]
    llm = loaded(tmp_path / "x.gguf")
    for text, ids in said["texts"].items():
        assert llm.tokenize(text.encode(), add_bos=False, special=True) == ids, text
    llm.eval(said["prompt"])
    logits = np.array(llm.scores[len(said["prompt"]) - 1])
    np.testing.assert_allclose(logits, said["logits"], atol=0.05 * np.abs(said["logits"]).max())


def test_ids_of_a_tokenizer_of_transformers_beside_its_model_of_sentencepiece(tmp_path):
    config = transformers.Gemma2Config(**(CONFIG | GEMMA | {"vocab_size": models.VOCAB + 16}))
    transformers.Gemma2ForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(TRUTH / "gemma2")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.save_pretrained(tmp_path / "model")
    shutil.copy(TRUTH / "gemma2" / "tokenizer.model", tmp_path / "model")
    wm.convert(tmp_path / "model", tmp_path / "x.gguf")
    llm = llama_cpp.Llama(str(tmp_path / "x.gguf"), vocab_only=True, verbose=False)
    for text in ("<|im_start|>he", "<start_of_turn>he<end_of_turn>", "<bos>he <|im_start|> he"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert llm.tokenize(text.encode(), add_bos=False, special=True) == ids, text


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_ids_of_texts_that_no_warning_names(tmp_path, scheme):
    """Texts that a tokenizer with the step Metaspace and llama.cpp take alike, and texts that the report names."""
    tokenizers = pytest.importorskip("tokenizers")
    step = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": False}
    tokenizer = models.fallback(normalizer=None, pre_tokenizer=step)
    made(tmp_path / "model", "LlamaForCausalLM")
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (tmp_path / "model" / "tokenizer_config.json").unlink()
    warnings = wm.convert(tmp_path / "model", tmp_path / "x.gguf").warnings
    llm = llama_cpp.Llama(str(tmp_path / "x.gguf"), vocab_only=True, verbose=False)
    theirs = tokenizers.Tokenizer.from_str(json.dumps(tokenizer))
    for text in ("he", "he he", " he", "<s>he", "<s> he", "he</s> he"):
        named = scheme != "never" and (" he" in text.replace("he he", "") or (scheme == "first" and text == "<s>he"))
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert (llm.tokenize(text.encode(), add_bos=False, special=True) != ids) is named, text
    assert len(warnings) == (scheme != "never")
