"""Regular expressions of configurations: `re.match`'s answers, in time linear in the length of a name."""

import random
import re
import time

import pytest
from tests.support import each, in_one_item

from weightmap.checkpoints.methods._expressions import Expression, UnsupportedExpressionError

# Expressions as llm-compressor, GPTQModel, AutoAWQ and ModelOpt write them, and every kind of syntax that is matched.
EXPRESSIONS = [
    r".*lm_head.*",
    r".*layers\.(" + "|".join(map(str, range(200))) + r")\.mlp\.(gate|up|down)_proj$",
    r".*model.*language_model.*layers.*mlp.*gate_proj",
    r".*layers\.\d+\.mlp\.(experts\.\d+\.)*gate_proj$",
    r"^(?!.*lm_head).*",
    r"^(?!.*(lm_head|gate\b)).*proj$",
    r".*(?<!gate)_proj",
    r".*_(?<=down_)proj$",
    r"(?i).*GATE_PROJ",
    r"(?x) .* lm_head  # a comment",
    r"(?s:.*)head",
    r"model\.layers\.[0-9]+\.self_attn\.[qkv]_proj",
    r"model.layers.(?:1|2|3[0-9]).mlp",
    r".*\.(q|k|v|o)_proj",
    r"^model\.layers\.(?!0\.)\d+",
    r"[^.]+\.layers",
    r"(?=.*mlp)(?=.*gate).*",
    r".*experts\.\d{1,3}\.w[123]$",
    r".*mlp\.gate(?!_proj).*",
    r"\Alm_head\Z",
    r".*\bgate\b.*",
    r".*\Bate",
    r"(?!)",
    r".*(?!lm_head$)",
    r"\S+\s?",
    r"(a|b)*?x",
    r"",
]
NAMES = [
    "lm_head",
    "lm_head\n",
    "model.layers.3.mlp.gate_proj",
    "model.language_model.layers.3.mlp.gate_proj",
    "model.layers.57.mlp.experts.12.gate_proj",
    "model.layers.0.self_attn.q_proj",
    "model.visual.blocks.1.attn.qkv",
    "model.layers.3.mlp.gate",
    "model.layers.10.mlp.experts.3.w2",
    "model.layers.3.MLP.Gate_Proj",
    "model.layers.199.mlp.down_proj",
    "é.ü_proj",
    "x",
    "",
]
ATOMS = [*"ab.1_^$A", r"\.", r"\d", r"\w", r"\W", r"\b", r"\B", r"\Z", "[ab]", "[^a]", "[a-c1]"]
REPEATS = ["*", "+", "?", "*?", "+?", "{1,2}", "{2}", "{0,1}", "{,2}"]


def expression(rng, depth):
    kind = rng.random()
    if not depth or kind < 0.35:
        return rng.choice(ATOMS)
    if kind < 0.6:
        return expression(rng, depth - 1) + expression(rng, depth - 1)
    if kind < 0.72:
        return f"(?:{expression(rng, depth - 1)}|{expression(rng, depth - 1)})"
    if kind < 0.9:
        return f"(?:{expression(rng, depth - 1)}){rng.choice(REPEATS)}"
    return f"({rng.choice(['?=', '?!', '?:', '?i:', '?s:'])}{expression(rng, depth - 1)})"


def agrees(text, name):
    assert Expression(text).fits(name) is (re.match(text, name) is not None)


def test_real_expressions_match_as_with_re():
    """Each of them, on each name."""
    each([(text, name) for text in EXPRESSIONS for name in NAMES], lambda pair: agrees(*pair))


@in_one_item("number", range(3000))
def test_any_expression_matches_as_with_re(number):
    """Always the same 3,000 expressions on five names each; versions of Python differ on empty ones."""
    rng = random.Random(number)
    text = expression(rng, rng.randrange(1, 5))
    try:
        re.compile(text)
    except re.error:
        return
    for _ in range(5):
        agrees(text, "".join(rng.choice("aab1._ A\n") for _ in range(rng.randrange(1, 9))))


def test_cases_of_several_characters():
    """The capital of ß is two letters, and so is the small form of a dotted I: no set contains either."""
    for name in ("groß", "İx", "ﬁ.q"):
        for text in (r"(?i).*[.][a-z_]+$", r"(?i)[^a-z]", r"(?i)g[a-z]+", r"(?i).[X]"):
            agrees(text, name)


def test_thousands_of_names(monkeypatch):
    """An expression whose beginning fits no name costs no walk along names."""
    expressions = [Expression(rf"^model\.layers\.{i}\.mlp$") for i in range(2000)]
    walked = []
    monkeypatch.setattr(Expression, "_positions", lambda _, name: walked.append(name))
    assert [e.fits("model.layers.1999.mlp") for e in expressions].index(True) == 1999
    assert len(walked) <= 5  # layers 1, 19, 199 and 1999 among them


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (r"(a)\1", "back-reference"),
        ("(?>a*)b", "atomic group"),
        ("a*+b", "possessive"),
        ("(a)?(?(1)b|c)", "conditional"),
        ("(?m)^a", "flags"),
        ("(?:(?:a{1000}){1000}){1000}", "counted repetitions"),
        ("(?:){4294967294}", "counted repetitions"),
    ],
)
def test_other_expressions_are_named(text, words):
    """Errors name the syntax that has no linear time."""
    with pytest.raises(UnsupportedExpressionError, match=words):
        Expression(text)


@pytest.mark.parametrize(
    "text", ["a?" * 500 + "a" * 500 + "b", "(a*)*b", "(a|a)*b", ".*" * 300 + "b", "(a+)+" * 50 + "b"]
)
def test_no_expression_takes_long(text):
    """Expressions that take `re` longer than anybody waits."""
    start = time.process_time()
    assert not Expression(text).fits("a" * 1000)
    assert time.process_time() - start < 20
