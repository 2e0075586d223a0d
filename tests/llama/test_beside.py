"""Files beside a model that becomes GGUF: special tokens, the model card, hostile or damaged files."""

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest

import weightmap as wm
from weightmap.llama.tokenizers import Files, Special, chat_template, merges_of_model

from . import models
from .models import config_of, tensors_of, write

LLAMA, GEMMA2 = "LlamaForCausalLM", "Gemma2ForCausalLM"
GEMMA_MODEL = (Path(models.__file__).parent / "groundtruth" / "gemma2" / "tokenizer.model").read_bytes()
NO_CONFIG = "there is no config.json beside the model"


@pytest.fixture
def converted(tmp_path):
    """Convert a small model with other files beside it, and return its metadata and the warnings."""
    numbers = itertools.count()

    def convert(files=None, name=LLAMA, **changes):
        usual = {"tokenizer.json": models.tokenizer(), "tokenizer_config.json": models.SETTINGS}
        number = next(numbers)
        source = write(tmp_path / f"{number}" / "Tiny-1B-it", config_of(name, **changes), tensors_of(name), files=usual)
        for path, content in (files or {}).items():
            (source / path).parent.mkdir(exist_ok=True)
            (source / path).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        report = wm.convert(source, tmp_path / f"{number}.gguf")
        with wm.open(tmp_path / f"{number}.gguf") as f:
            return dict(f.metadata), report.warnings

    return convert


TOKENS = ["<s>", "</s>", "<sep>", "<cls>", "<unk>", "<turn>"]
ADDED = [{"id": i, "content": token, "special": True} for i, token in enumerate(TOKENS)]


def settings_of(rng):
    """Settings of a tokenizer: some tokens, and whether some are added."""
    kinds = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"]
    made = {f"{kind}_token": rng.choice([*TOKENS, "nowhere"]) for kind in kinds if rng.random() < 0.5}
    return made | {f"add_{kind}_token": rng.random() < 0.5 for kind in ("bos", "eos", "sep") if rng.random() < 0.3}


def template_of(rng, *letters):
    """A template of texts, with special tokens around and between them, or without."""
    special = lambda: [{"SpecialToken": {"id": rng.choice(TOKENS), "type_id": 0}}]  # noqa: E731
    steps = []
    for letter in letters:
        steps += special() if rng.random() < 0.7 else []
        steps += [{"Sequence": {"id": letter, "type_id": 0}}]
    return steps + (special() if rng.random() < 0.6 else [])


def processor_of(rng):
    """A post-processor, or none."""
    template = {"type": "TemplateProcessing", "single": template_of(rng, "A"), "pair": template_of(rng, "A", "B")}
    roberta = {"type": "RobertaProcessing", "cls": [rng.choice(TOKENS), 0], "sep": [rng.choice(TOKENS), 1]}
    several = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}
    return rng.choice([None, template, template, roberta, several])


@pytest.mark.parametrize("seed", range(200))
def test_special_tokens_are_those_of_the_package_gguf(tmp_path, seed):
    gguf = pytest.importorskip("gguf")
    rng = random.Random(seed)
    config = {f"{kind}_token_id": rng.randrange(8) for kind in ("bos", "eos", "pad") if rng.random() < 0.4}
    processor, settings = processor_of(rng), rng.choice([{}, settings_of(rng), settings_of(rng), settings_of(rng)])
    if processor is not None and settings:  # gguf 0.19 differs from llama.cpp's script: see the next test
        settings = {"bos_token": "<s>", **{key: value for key, value in settings.items() if key[:3] != "add"}}
    files = {
        "config.json": rng.choice([config, {"text_config": config}]),
        "tokenizer.json": models.tokenizer(added_tokens=ADDED, post_processor=processor),
        "tokenizer_config.json": settings,
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    theirs = gguf.SpecialVocab(tmp_path, load_merges=True, n_vocab=7)
    read = Files(lambda name: (tmp_path / name).read_bytes() if (tmp_path / name).exists() else None)
    ours = Special(read, files["config.json"], 7, [])
    assert ours.ids == theirs.special_token_ids
    assert [kind for kind in ours.adds if ours.adds[kind]] == [
        kind for kind, added in theirs.add_special_token.items() if added
    ]
    assert merges_of_model(read, []) == theirs.merges


BEGINS = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|begin|>"}}, {"Sequence": {"id": "A"}}]}
LEVEL = {"type": "ByteLevel"}


@pytest.mark.parametrize(
    ("processor", "settings", "adds"),
    [
        (BEGINS, {"add_bos_token": False}, True),
        (BEGINS, {"bos_token": None}, True),
        (LEVEL, {"add_bos_token": True}, False),
        (LEVEL, {}, False),
        ({"type": "Sequence", "processors": [LEVEL, BEGINS]}, {"add_bos_token": False}, True),
        (None, {"add_bos_token": True}, True),
    ],
)
def test_the_post_processor_decides_whether_texts_get_a_bos_token(converted, processor, settings, adds):
    """As in transformers 5, and in llama.cpp's script."""
    usual = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    files = {
        "tokenizer.json": models.tokenizer(post_processor=processor),
        "tokenizer_config.json": usual | settings,
    }
    metadata, warnings = converted(files)
    assert warnings == ()
    assert metadata["tokenizer.ggml.bos_token_id"] == 259
    assert metadata["tokenizer.ggml.add_bos_token"] == adds


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer_config.json": {"chat_template": [{"name": "default", "template": "a"}]}},
        {"chat_template.jinja": b"{{ messages }}"},
        {"chat_template.jinja": b"{{ a }}", "additional_chat_templates/rag.jinja": b"{{ b }}"},
        {"chat_template.json": {"chat_template": "{{ older }}"}},
        {"merges.txt": b"#version: 0.2\nh e\n\nl l\nodd\n"},
    ],
)
def test_templates_and_merges_are_those_of_the_package_gguf(tmp_path, files):
    gguf = pytest.importorskip("gguf")
    bare = {key: value for key, value in models.SETTINGS.items() if key != "chat_template"}
    tokens = models.tokenizer(model=models.tokenizer()["model"] | {"merges": []})
    for name, content in {"tokenizer.json": tokens, "tokenizer_config.json": bare, **files}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    theirs = gguf.SpecialVocab(tmp_path, load_merges=True)
    read = Files(lambda name: (tmp_path / name).read_bytes() if (tmp_path / name).exists() else None)
    others = [name for name in files if name.startswith("additional")]
    assert chat_template(read, others, []) == theirs.chat_template
    assert merges_of_model(read, []) == theirs.merges


CARD = b"""---
license: apache-2.0
language:
- en
- no
tags: [chat, "two words"]
base_model: org/Base-7B
datasets:
  - org/data
version: 1.10
model-index: &index
- {name: x, results: []}
again: *index
---
# Tiny
"""


def test_a_model_card_and_how_to_sample(converted):
    sampling = {"top_k": 20, "top_p": 0.5, "temperature": 1, "do_sample": True, "eos_token_id": [1, 2]}
    sampling["repetition_penalty"] = 1.25
    others = dict.fromkeys(("LICENSE", "code.py", "preprocessor_config.json"), b"")
    metadata, warnings = converted({"README.md": CARD, "generation_config.json": sampling, **others})
    expected = {
        "license": "apache-2.0",
        "languages": ["en", "no"],
        "tags": ["chat", "two words"],
        "base_model.0.name": "Base 7B",
        "base_model.0.repo_url": "https://huggingface.co/org/Base-7B",
        "dataset.0.name": "Data",
        "version": "1.10",
        "name": "Tiny 1B It",
        "sampling.top_k": 20,
        "sampling.top_p": 0.5,
        "sampling.temp": 1.0,
        "sampling.penalty_repeat": 1.25,
    }
    for key, value in expected.items():
        stored = metadata[f"general.{key}"]
        assert (list(stored) if isinstance(value, list) else stored) == value, key
    assert warnings == ("GGUF has no place for 'preprocessor_config.json', 'LICENSE', 'code.py'",)


BOMB = "tags:\n- &a0 [lol]\n" + "".join(f"- &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))
LEFT_OUT = {
    "bomb": ("README.md", f"---\n{BOMB}---\n".encode(), "README.md is left out: it has an alias"),
    "long": ("README.md", b"---\ntags:\n" + b"- x\n" * 20_000 + b"---\n", "expected at most 16384"),
    "deep": ("README.md", b"---\ntags: " + b"[" * 8000 + b"\n---\n", "README.md is left out"),
    "no YAML": ("README.md", b"---\ntags: ]\n---\n", "README.md is left out: while parsing"),
    "number": ("generation_config.json", {"top_k": "x"}, "the top_k x, which is left out"),
    "large": ("generation_config.json", {"top_k": 2**40}, "the top_k 1099511627776, which is left out"),
    "float": ("generation_config.json", b'{"top_p": 1e308}', "the top_p 1e[+]308, which is left out"),
    "cut": ("generation_config.json", b'{"top_p"', "generation_config.json is left out"),
    "template": ("tokenizer_config.json", {"chat_template": 5}, "has a chat_template that is a number"),
    "names": (
        "tokenizer_config.json",
        {"chat_template": [{"name": name, "template": name} for name in ("a-b", "a_b")]},
        "chat template 'a_b' has the name of another one",
    ),
    "id": ("tokenizer_config.json", {"chat_template": [{"name": 1}]}, "has a chat_template that is an array"),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_cannot_be_read_about_a_model_is_left_out_by_name(converted, case):
    name, content, said = LEFT_OUT[case]
    _, warnings = converted({name: content})
    assert len(warnings) == 1
    with pytest.raises(wm.EncodeError, match=said):
        raise wm.EncodeError(warnings[0])


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer.json"])
def test_links_out_of_a_strangers_directory(tmp_path, name):
    """Their targets do not go into the new file, which may be published."""
    source = write(
        tmp_path / "model", config_of(LLAMA), tensors_of(LLAMA), files={"tokenizer.json": models.tokenizer()}
    )
    (source / name).unlink(missing_ok=True)
    (tmp_path / "secret").write_text(json.dumps(models.tokenizer()))
    (source / name).symlink_to("../secret")
    with pytest.raises(wm.FormatError, match=rf"model/{name}: where the link leads, expected a file below its dire"):
        wm.convert(source, tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.parametrize("name", ["MistralForCausalLM", "MixtralForCausalLM"])
def test_a_sliding_window_that_llama_cpp_does_not_have(converted, name):
    assert converted(name=name, sliding_window=None)[1] == ()
    said = "config.json has the sliding_window 64: llama.cpp attends to all tokens"
    assert converted(name=name, sliding_window=64)[1] == (said,)
    assert converted(name=name, sliding_window=512)[1] == ()
    assert converted(name=LLAMA, sliding_window=64)[1] == ()


def test_the_sliding_window_of_a_configuration_without_one(tmp_path):
    said = "by transformers' default, the model has the sliding_window 4096: llama.cpp attends to all tokens"
    for name, wide in (("MistralForCausalLM", (said,)), ("MixtralForCausalLM", ())):
        for length, warnings in ((4096, ()), (4097, wide)):
            config = config_of(name, max_position_embeddings=length)
            config.pop("sliding_window", None)
            source = write(tmp_path / name, config, tensors_of(name))
            assert wm.convert(source, tmp_path / "x.gguf").warnings == warnings


def test_added_tokens_of_tokenizer_json_beside_a_model_of_sentencepiece(tmp_path):
    """Transformers 5 writes them nowhere else; they win over other files' tokens at the same ids."""
    contents = {4: "<start_of_turn>", 385: "<new>", 386: "\u2581tool", 387: "<old>", 388: "<far>"}
    added = [{"id": i, "content": content, "special": i in (4, 385)} for i, content in contents.items()]
    files = {
        "tokenizer.model": GEMMA_MODEL,
        "tokenizer.json": {"added_tokens": added},
        "tokenizer_config.json": {"added_tokens_decoder": {"387": {"content": "<other>", "special": True}}},
    }
    tensors = tensors_of(GEMMA2) | {"model.embed_tokens.weight": np.zeros((388, models.HIDDEN), models.BF16)}
    source = write(tmp_path / "model", config_of(GEMMA2, vocab_size=388), tensors, files=files)
    warnings = wm.convert(source, tmp_path / "x.gguf").warnings
    assert warnings == ("the added token '<far>' has the id 388, and the model 388 tokens: left out",)
    metadata = wm.open(tmp_path / "x.gguf").metadata
    columns = [list(metadata[f"tokenizer.ggml.{key}"]) for key in ("tokens", "token_type", "scores")]
    assert [tuple(column[i] for column in columns) for i in (4, 384, 385, 386, 387)] == [
        ("<start_of_turn>", 3, -1000),
        ("[PAD384]", 5, -10000),
        ("<new>", 3, -1000),
        (" tool", 4, -1000),
        ("<other>", 3, -1000),
    ]


BLANK_MORE = "get other ids than with tokenizer.json: llama.cpp puts another blank in front"


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (
            {"prepend_scheme": "first", "split": False},
            f"texts that begin with a blank or follow a special token {BLANK_MORE}",
        ),
        ({"prepend_scheme": "always"}, f"texts that begin with a blank {BLANK_MORE}"),
        ({"add_prefix_space": True}, f"texts that begin with a blank {BLANK_MORE}"),
        ({"prepend_scheme": "never"}, None),
        ({"add_prefix_space": False}, None),
    ],
)
def test_texts_that_get_a_blank_by_llama_cpp_alone(converted, step, said):
    metaspace = {"type": "Metaspace", "replacement": "\u2581", **step}
    files = {"tokenizer.json": models.fallback(normalizer=None, pre_tokenizer=metaspace)}
    metadata, warnings = converted(files)
    assert warnings == (() if said is None else (said,))
    assert metadata.get("tokenizer.ggml.add_space_prefix", True) is (said is not None)
    assert converted({"tokenizer.json": models.fallback()})[1] == ()
    files["tokenizer.model"] = GEMMA_MODEL + b"\x1a\x02\x18\x01"  # texts get a blank in front of it
    files["tokenizer.json"] = {"pre_tokenizer": metaspace}
    assert converted(files)[1] == (() if said is None else (said,))
    files["tokenizer.model"] = GEMMA_MODEL + b"\x1a\x02\x18\x00"
    assert converted(files)[1] == ()


@pytest.mark.parametrize("flag", ["single_word", "lstrip", "rstrip", "normalized"])
def test_flags_of_added_tokens_that_llama_cpp_ignores(converted, flag):
    said = f"llama.cpp ignores {flag} of added tokens: text beside them may get other ids"
    for tokenizer in (models.tokenizer(), models.fallback()):
        for entry in tokenizer["added_tokens"][:2]:
            entry[flag] = True
        matters = flag != "normalized" or tokenizer["normalizer"] is not None
        assert converted({"tokenizer.json": tokenizer})[1] == ((said,) if matters else ())


def test_added_tokens_that_the_model_does_not_have(converted):
    settings = {"added_tokens_decoder": {"384": {"content": "<pad>", "special": True}, "383": {"content": "<x>"}}}
    files = {"tokenizer.model": GEMMA_MODEL, "tokenizer_config.json": settings, "added_tokens.json": {"<y>": 400}}
    files["tokenizer.json"] = {}
    metadata, warnings = converted(files)
    tokens = list(metadata["tokenizer.ggml.tokens"])
    assert (len(tokens), tokens[383]) == (models.VOCAB, "<x>")
    said = [f"the added token {token!r} has the id {i}, and the model" for token, i in (("<y>", 400), ("<pad>", 384))]
    assert [line for line in warnings if line.startswith(tuple(said))] == [
        f"{one} 384 tokens: left out" for one in said
    ]
    settings["added_tokens_decoder"]["-1"] = {"content": "<z>"}
    with pytest.raises(wm.EncodeError, match="added_tokens_decoder has the id '-1', expected one below"):
        converted(files)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"config.json": {"architectures": ["Qwen3_5ForConditionalGeneration"]}},
            "config.json has the architecture 'Qwen3_5ForConditionalGeneration', .* weightmap.compat.gguf convert_",
        ),
        ({"config.json": {"model_type": "x"}}, "config.json has no architecture"),
        ({}, f"{NO_CONFIG}, whose architecture decides llama.cpp's names$"),
        ({"config.json": {}}, "config.json has no architecture"),
        ({"adapter_config.json": {}}, f"{NO_CONFIG}, .* adapter such as LoRA, which convert_lora_to_gguf.py"),
        ({"params.json": {}}, f"{NO_CONFIG}, .*; params.json says .* convert_hf_to_gguf.py --mistral-format"),
    ],
)
def test_a_model_of_an_unknown_architecture_says_what_helps(tmp_path, files, said):
    source = tmp_path / "m"
    source.mkdir()
    wm.save(source / "model.safetensors", {"w": np.ones((4, 256), np.float32)})
    for name, content in files.items():
        (source / name).write_text(json.dumps(content), encoding="utf-8")
    report = wm.convert(source, tmp_path / "x.gguf")
    line = next(line for line in report.warnings if line.startswith(said[:20]))
    with pytest.raises(wm.EncodeError, match=said):
        raise wm.EncodeError(line)
    with pytest.raises(wm.EncodeError, match=said.removesuffix("$")):
        wm.convert(source, tmp_path / "y.gguf", names="llama.cpp")
    with pytest.raises(wm.EncodeError, match=r"llama\.cpp would not"):
        wm.convert(source, tmp_path / "y.gguf", quantize="q4_k_m")
