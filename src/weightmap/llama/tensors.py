"""The tensors of a model under llama.cpp's names: renamed, permuted, stacked and shifted while they are read.

`Translated` is a table over the stored tensors. If a row needs more than a new name, it has its own source
(`weightmap.core.bytes.geometry`), which makes its bytes in pieces, so that no tensor is held whole.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightmap._messages import counted, quoted
from weightmap.checkpoints.views import ViewTable
from weightmap.core.bytes.derived import Derived, Fetched, StridedSource
from weightmap.core.dtypes import DTYPES, FLOATING, numpy_dtype
from weightmap.core.table import StringTable
from weightmap.core.table.table import Row, Table
from weightmap.llama.architectures import Architecture, Config, refusal, rope_freqs, rope_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightmap.core.bytes.source import Source

# llama.cpp's mixtures: schemes such as Q4_K_M, which give each kind of tensor its own type.
#
# A mixture equals llama.cpp's, tensor for tensor, without an importance matrix: attention values and down projections
# get more bits in some layers, and the output has 6 bits. (A plain scheme, such as "q4_k", gives every matrix the same
# type, and leaves embeddings dense.) Rows that are not whole blocks get the type that `convert` always gives them:
# IQ4_NL, where llama.cpp uses Q4_0, which has the same size and larger errors.

# The values of `general.file_type` for mixtures, and the type of most tensors of each.
_TYPES = {"q3_k_s": 11, "q3_k_m": 12, "q3_k_l": 13, "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16, "q5_k_m": 17}
MIXTURES: Mapping[str, str] = {mixture: mixture[:4] for mixture in _TYPES}
# Its values for types and plain schemes.
_TYPES |= {"float32": 0, "float16": 1, "bfloat16": 32, "q1_0": 40, "iq4_nl": 25, "mxfp4": 38, "nvfp4": 39, "q4_0": 2}
_TYPES |= {"q4_1": 3, "q5_0": 8, "q5_1": 9, "q8_0": 7, "q2_k": 10, "q3_k": 11, "q4_k": 14, "q5_k": 16, "q6_k": 18}
FILE_TYPES: Mapping[str, int] = _TYPES
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.")
# Mixtral's number of experts, for which llama.cpp has special rules.
_MIXTRAL_EXPERTS = 8


class Shape(NamedTuple):
    """The facts about a model, besides the names of tensors, that a mixture depends on.

    Attributes
    ----------
    layers, experts : int
        The number of layers, and of experts: 0 for none.
    tied : bool
        Whether the embeddings are also the output.
    large : bool
        Whether llama.cpp takes the model for one of 70 billion parameters.
    """

    layers: int
    experts: int
    tied: bool
    large: bool


def _more(layer: int, layers: int) -> bool:
    """Whether a layer gets more bits: the first and the last eighth of the layers, and every third between them."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def type_in(mixture: str, name: str, shape: Shape) -> str:
    """Return the scheme of a tensor by its name in llama.cpp."""
    usual = MIXTURES[mixture]
    if name == "output.weight" or (shape.tied and name == "token_embd.weight"):
        return "q6_k"
    match = _LAYER.match(name)
    layer, part = (0, "") if match is None else (int(match[1]), match[2].removesuffix("_exps"))
    if part == "attn_v":
        return _of_values(mixture, layer, shape)
    if part == "ffn_down":
        return _of_down(mixture, layer, shape.layers)
    if part == "attn_output":
        return _of_output(mixture, shape)
    return "q8_0" if part == "attn_k" and shape.experts == _MIXTRAL_EXPERTS else usual


def _of_values(mixture: str, layer: int, shape: Shape) -> str:
    """Return the scheme of attention values."""
    if shape.experts == _MIXTRAL_EXPERTS:
        return "q8_0"
    scheme = MIXTURES[mixture]
    if mixture == "q3_k_m":
        scheme = "q5_k" if layer < 2 else "q4_k"
    elif mixture == "q3_k_l" or (mixture == "q4_k_s" and layer < 4):
        scheme = "q5_k"
    elif mixture in ("q4_k_m", "q5_k_m") and _more(layer, shape.layers):
        scheme = "q6_k"
    return "q5_k" if shape.large and scheme in ("q3_k", "q4_k") else scheme


def _of_output(mixture: str, shape: Shape) -> str:
    """Return the scheme of the output projections of attention."""
    usual = MIXTURES[mixture]
    if shape.experts == _MIXTRAL_EXPERTS:
        return "q5_k" if mixture in ("q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m") else usual
    return {"q3_k_m": "q4_k", "q3_k_l": "q5_k"}.get(mixture, usual)


def _of_down(mixture: str, layer: int, layers: int) -> str:
    """Return the scheme of the down projections."""
    if mixture == "q3_k_m":
        return "q5_k" if layer < layers // 16 else "q4_k"
    if mixture == "q3_k_l" or (mixture == "q4_k_s" and layer < layers // 8):
        return "q5_k"
    return "q6_k" if mixture in ("q4_k_m", "q5_k_m") and _more(layer, layers) else MIXTURES[mixture]


# Scales of a quantised cache of keys and values, which llama.cpp does not use.
CACHE_SCALES = (".k_scale", ".v_scale")
# Names of tensors that transformers 4 stored, and that no model needs.
_LEFT_OUT = re.compile(r".*\.(?:rotary_emb\.inv_freq|attention\.bias|attention\.masked_bias)", re.DOTALL)
# A single expert by its number, or its scale; Mixtral numbers the projections, too.
_EXPERT = re.compile(
    r"(?P<layer>.+\.)(?:mlp|block_sparse_moe)\.experts\.(?P<number>[0-9]{1,6})\.(?P<part>\w+)\.\w+", re.DOTALL
)
_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
# All experts as one tensor, with gate above up, as transformers 5 may store them.
_FUSED = re.compile(r"(?P<layer>.+\.)(?:mlp|block_sparse_moe)\.experts\.(?P<part>gate_up_proj|down_proj)", re.DOTALL)
# llama.cpp's LLAMA_MAX_LAYERS; the package gguf makes 500 names for each layer.
_MAX_LAYERS = 512
_SUFFIXES = (".weight", ".bias", ".scale")
_COMPUTED = ("float32", "float16", "bfloat16")
# Norms as long as the hidden state, by their names in the package gguf.
_NORMS = ("ATTN_NORM", "ATTN_POST_NORM", "FFN_NORM", "FFN_PRE_NORM", "FFN_POST_NORM", "OUTPUT_NORM")


def stays_float32(name: str, shape: Sequence[int]) -> bool:
    """Whether llama.cpp wants a tensor in float32, whatever the types of others: norms, biases and routers."""
    stays = name.endswith(("_norm.weight", ".ffn_gate_inp.weight")) or not name.endswith(".weight")
    return len(shape) < 2 or stays


class ExpectedTensor(NamedTuple):
    """A tensor that llama.cpp looks for: its shape, and whether the model runs without it."""

    shape: tuple[int, ...]
    optional: bool = False


def wanted_tensors(architecture: Architecture, config: Config, gguf: Any) -> dict[str, ExpectedTensor]:
    """Return the tensors that llama.cpp loads for a model with this configuration, by its names."""
    hidden, inner, vocab = (config.count(name) for name in ("hidden_size", "intermediate_size", "vocab_size"))
    head = architecture.head_dim(config)
    rows, kv_rows = (head * config.count(name) for name in ("num_attention_heads", "num_key_value_heads"))
    dense = {"FFN_GATE": (inner, hidden), "FFN_UP": (inner, hidden), "FFN_DOWN": (hidden, inner)}
    attention = {"ATTN_Q": (rows, hidden), "ATTN_K": (kv_rows, hidden), "ATTN_V": (kv_rows, hidden)}
    shapes: dict[str, tuple[int, ...]] = {
        "TOKEN_EMBD": (vocab, hidden),
        "OUTPUT": (vocab, hidden),
        "ATTN_OUT": (hidden, rows),
        "ATTN_Q_NORM": (head,),
        "ATTN_K_NORM": (head,),
        **dict.fromkeys(_NORMS, (hidden,)),
        **attention,
    }
    if architecture.permuted:
        shapes["ROPE_FREQS"] = (head // 2,)
    biased = set(attention)
    if architecture.experts:
        count = config.count("num_experts", "num_local_experts")
        inner = config.count("moe_intermediate_size", "intermediate_size")
        shapes |= {
            "FFN_GATE_INP": (count, hidden),
            "FFN_GATE_EXP": (count, inner, hidden),
            "FFN_UP_EXP": (count, inner, hidden),
            "FFN_DOWN_EXP": (count, hidden, inner),
        }
    else:
        shapes |= dense
    if architecture.dense_biases:
        biased |= {"ATTN_OUT", *dense}
    optional = {"ROPE_FREQS", "OUTPUT"} if config.get("tie_word_embeddings") else {"ROPE_FREQS"}
    expected = {}
    for tensor in gguf.MODEL_TENSORS[_number(architecture, gguf)]:
        kind, name = tensor.name, gguf.TENSOR_NAMES[tensor]
        shape = shapes.get(kind)
        if shape is None:  # gguf also lists alternatives, such as q, k and v as one tensor
            continue
        for layer in range(config.count("num_hidden_layers")) if "{bid}" in name else range(1):
            base = name.format(bid=layer)
            expected[f"{base}.weight"] = ExpectedTensor(shape, kind in optional)
            if kind in biased:
                expected[f"{base}.bias"] = ExpectedTensor(shape[:1], optional=True)
    return expected


def _number(architecture: Architecture, gguf: Any) -> Any:
    """Return gguf's number of an architecture."""
    return next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture.name)


class Translated(ViewTable):
    """The tensors of a model by llama.cpp's names.

    Parameters
    ----------
    stored : Table
    architecture : Architecture
    config : Config
    gguf : module
    plain : callable, optional
        Returns a table of the decoded tensors: if only some experts can be repacked, all are decoded.

    Raises
    ------
    EncodeError
        When llama.cpp has no place for a tensor, when a tensor is missing, or when its shape differs from the
        configuration.
    """

    def __init__(
        self,
        stored: Table,
        architecture: Architecture,
        config: Config,
        gguf: Any,
        plain: Callable[[], Table] | None = None,
    ) -> None:
        super().__init__(stored)
        self._architecture, self._config = architecture, config
        self._plain: Table | None = None
        layers = config.count("num_hidden_layers")
        if layers > stored.count:
            raise refusal(f"config.json has {layers} layers, and the model {counted(stored.count, 'tensor')}")
        if layers > _MAX_LAYERS:
            raise refusal(f"config.json has {layers} layers, and llama.cpp takes at most {_MAX_LAYERS}")
        self._expected = wanted_tensors(architecture, config, gguf)
        # A copy of the embeddings, which llama.cpp does not need.
        self._copy = config.get("tie_word_embeddings") and "output.weight" not in self._expected and "lm_head.weight"
        self._map = gguf.get_tensor_name_map(_number(architecture, gguf), layers)
        rows: dict[str, Row] = {}
        experts: dict[str, dict[int, tuple[str, Row]]] = {}
        for name, row in zip(list(stored.names), stored.rows(), strict=True):
            for new, translated in self._translated(name.removeprefix("language_model."), row, experts):
                if new in rows:
                    raise refusal(f"two tensors are {quoted(new)}, one of them {quoted(name)}")
                rows[new] = translated
        for name, parts in experts.items():
            rows[name] = self._stacked(name, parts, plain)
        self._check(rows)  # includes head_dim, which _add_frequencies then trusts
        self._add_frequencies(rows)
        self._rows = list(rows.values())
        self._names = StringTable.of(list(rows), "tensor name")
        self.count: int = len(rows)

    # ------------------------------------------------------------------------------------------------ one by one
    def _translated(
        self, name: str, row: Row, experts: dict[str, dict[int, tuple[str, Row]]]
    ) -> Iterator[tuple[str, Row]]:
        """Yield the new name and row of a stored tensor, or note the tensor in `experts`, under the new name."""
        if _LEFT_OUT.fullmatch(name) or name.endswith(CACHE_SCALES) or name == self._copy:
            return
        match = _EXPERT.fullmatch(name)
        if match is not None:
            part = _MIXTRAL.get(match["part"], match["part"])
            new = self._place(f"{match['layer']}mlp.experts.{part}.{name.rpartition('.')[2]}", name)
            if experts.setdefault(new, {}).setdefault(int(match["number"]), (name, row))[0] != name:
                raise refusal(f"expert {match['number']} of {quoted(new)} is stored twice")
            return
        match = _FUSED.fullmatch(name)
        if match is not None:
            halves = ("gate_proj", "up_proj") if match["part"] == "gate_up_proj" else (match["part"],)
            for number, part in enumerate(halves):
                new = self._place(f"{match['layer']}mlp.experts.{part}.weight", name)
                yield new, _half(name, row, number) if len(halves) > 1 else row
            return
        new = self._place(name, name)
        yield new, self._adjusted(new, row)

    def _place(self, name: str, stored: str) -> str:
        """Return llama.cpp's name of a tensor. Raises `EncodeError` if it has none."""
        new = self._map.get_name(name, try_suffixes=_SUFFIXES)
        whole = None if new is None else f"{new.removesuffix('.scale')}.weight" if new.endswith(".scale") else new
        if new is None or whole not in self._expected:
            title = self._architecture.name
            raise refusal(f"tensor {quoted(stored)} has no place in a model of the architecture {title}")
        return str(new)

    def _adjusted(self, name: str, row: Row) -> Row:
        """Return a tensor's row in the form that llama.cpp computes with."""
        architecture, config = self._architecture, self._config
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(name.split(".")[-2])
        if architecture.permuted and heads is not None and not name.endswith(".scale"):
            if row.shape != self._expected[name].shape:
                return row  # refused later, together with all others
            row = _permuted(name, row, config.count(heads))
        if not stays_float32(name, row.shape):
            return row
        plus = float(architecture.shifted and name.endswith("norm.weight"))
        return row if row.dtype.name == "float32" and not plus else _as_float32(name, row, plus)

    def _stacked(self, name: str, parts: Mapping[int, tuple[str, Row]], plain: Callable[[], Table] | None) -> Row:
        """Return experts, or their scales, on a new first axis."""
        count = self._expected[f"{name.rpartition('.')[0]}.weight"].shape[0]
        missing = next((i for i in range(min(count, len(parts) + 1)) if i not in parts), None)
        if missing is not None or len(parts) != count:
            which = f"has no expert {missing}" if missing is not None else f"has {counted(len(parts), 'expert')}"
            raise refusal(f"{name} {which}, and by config.json there are {count}")
        rows = [parts[i][1].dense for i in range(count)]
        if plain is not None and len({row.dtype.name for row in rows}) > 1:
            if self._plain is None:
                self._plain = plain()
            rows = [self._plain.row(self._plain.find(parts[i][0])).dense for i in range(count)]
        first, scales = rows[0], name.endswith(".scale")
        kinds = {(row.shape, row.dtype.name) for row in rows}
        if len(kinds) > 1 or (scales and math.prod(first.shape) != 1):
            raise refusal(f"the experts of {name} are not of one shape and type{', one number each' if scales else ''}")
        shape = (count,) if scales else (count, *first.shape)
        return first._replace(shape=shape, nbytes=count * first.nbytes, source=_Stack(rows))

    def _add_frequencies(self, rows: dict[str, Row]) -> None:
        if not (self._architecture.permuted and rows):
            return
        values = rope_freqs(rope_of(self._config), self._architecture.head_dim(self._config))
        if values is None:
            return
        sibling = next(iter(rows.values()))
        source = Fetched(sibling.source, sibling.offset, values.view(np.uint8))
        rows["rope_freqs.weight"] = Row(DTYPES["float32"], values.shape, source, sibling.offset, values.nbytes)

    def _check(self, rows: Mapping[str, Row]) -> None:
        check_complete(rows.keys(), self._expected)
        for name, row in rows.items():
            target = self._expected.get(name)
            if target is not None and row.shape != target.shape:
                shape = " x ".join(map(str, row.shape))
                expected = " x ".join(map(str, target.shape))
                raise refusal(f"{name} is {shape}, and by config.json it is {expected}")

    def check_types(self, dtype: str | None) -> None:
        """Raise `EncodeError` for a tensor that llama.cpp does not compute with after its conversion to `dtype`."""
        for name, row in zip(self.names, self._rows, strict=True):
            kind = dtype if row.dtype.name in FLOATING and dtype in FLOATING else row.dtype.name
            if not row.dtype.quantized and kind not in _COMPUTED:
                raise refusal(f"{name} is of type {kind}, expected one of {', '.join(_COMPUTED)} (dtype)")

    @property
    def expected(self) -> Mapping[str, ExpectedTensor]:
        """The tensors that llama.cpp looks for, by name."""
        return self._expected

    def row(self, i: int) -> Row:
        """Return row i."""
        return self._rows[i]


def check_complete(names: Any, expected: Mapping[str, ExpectedTensor]) -> None:
    """Raise `EncodeError` if llama.cpp would miss one of its tensors."""
    missing = [name for name, tensor in expected.items() if not tensor.optional and name not in names]
    if missing:
        more = f" and {counted(len(missing) - 1, 'more tensor')}" if len(missing) > 1 else ""
        raise refusal(f"the model has no {missing[0]}{more}")


# -------------------------------------------------------------------------------------------------------- the rows
def _permuted(name: str, row: Row, heads: int) -> Row:
    """Turn the halves of every head's rows into pairs."""
    half, width = row.shape[0] // heads // 2, row.nbytes // row.shape[0]
    if row.shape[0] != 2 * half * heads or width * row.shape[0] != row.nbytes:
        raise refusal(f"{name} has heads of {row.shape[0] // heads} rows, expected an even number")
    dense = row.dense
    # Row 2 j + s of a head is row s * half + j of the stored one.
    shape, strides = (heads, half, 2), (2 * half * width, width, half * width)
    return dense._replace(source=StridedSource(dense.source, dense.offset, dense.nbytes, shape, strides, width))


def _half(name: str, row: Row, number: int) -> Row:
    """Return the gate or the up projections of experts that are stored as one tensor."""
    row = row.dense
    count, rows, width = row.shape if len(row.shape) == 3 else (0, 0, 0)
    if not row.nbytes or rows % 2 or row.dtype.packed:
        raise refusal(f"tensor {quoted(name)} is not a stack of gates and projections of experts")
    each = row.nbytes // count // rows
    begin, nbytes = row.offset + number * (rows // 2) * each, row.nbytes // 2
    source = StridedSource(row.source, begin, nbytes, (count, rows // 2), (rows * each, each), each)
    return row._replace(shape=(count, rows // 2, width), source=source, offset=begin, nbytes=nbytes)


def _as_float32(name: str, row: Row, plus: float) -> Row:
    if row.dtype.name not in FLOATING:
        raise refusal(f"{name} is of type {row.dtype.name}, expected one of floating point")
    dense = row.dense
    nbytes = 4 * math.prod(row.shape)
    return Row(DTYPES["float32"], row.shape, _Cast(dense, plus, nbytes), dense.offset, nbytes)


class _Cast(Derived):
    """A tensor as float32, plus a number; as in llama.cpp's script, float16 is added in float16."""

    def __init__(self, row: Row, plus: float, nbytes: int) -> None:
        super().__init__(row.source, row.offset, nbytes)
        self._row, self._plus, self._sum = row, plus, "<f2" if row.dtype.name == "float16" else "<f4"

    def reads(self, begin: int, end: int) -> Iterator[tuple[Source, int, int]]:  # noqa: ARG002 - it is small
        """Implement `Source.reads`: the whole tensor."""
        return self._row.reads()

    def reading(self, ahead: Mapping[Source, Source]) -> Source:
        """Implement `Source.reading`."""
        return _Cast(self._row.reading(ahead), self._plus, self.size - self._base)

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        stored, at = numpy_dtype(self._row.dtype), 0
        for chunk in self._row.source.chunks(self._row.offset, self._row.nbytes):
            with np.errstate(over="ignore", invalid="ignore"):
                values = np.frombuffer(chunk, stored).astype(self._sum)
                octets = (values + self._plus if self._plus else values).astype("<f4").view(np.uint8)
            yield octets[max(start - at, 0) : max(stop - at, 0)]
            at += len(octets)


class _Stack(Derived):
    """Tensors of one shape, one behind the other."""

    def __init__(self, rows: Sequence[Row]) -> None:
        first = rows[0]
        super().__init__(first.source, first.offset, len(rows) * first.nbytes)
        self._rows = rows

    def check_size(self, what: str, nbytes: int) -> None:
        """Implement `Source.check_size`, for each tensor."""
        for row in self._rows:
            row.source.check_size(what, nbytes // len(self._rows))

    def reads(self, begin: int, end: int) -> Iterator[tuple[Source, int, int]]:
        """Implement `Source.reads`."""
        for row, start, stop in self._parts(begin - self._base, end - self._base):
            yield from row.source.reads(row.offset + start, row.offset + stop)

    def stretches(self, begin: int, end: int) -> Sequence[tuple[Source, int, int]]:
        """Implement `Source.stretches`: the stretches of all sources."""
        ranges: list[tuple[Source, int, int]] = []
        for row, start, stop in self._parts(begin - self._base, end - self._base):
            part = row.source.stretches(row.offset + start, row.offset + stop)
            if not part:
                return ()
            ranges += part
        return ranges

    def reading(self, ahead: Mapping[Source, Source]) -> Source:
        """Implement `Source.reading`."""
        return _Stack([row.reading(ahead) for row in self._rows])

    def check_unchanged(self) -> None:
        """Implement `Source.check_unchanged`, for all files."""
        for row in self._rows:
            row.source.check_unchanged()

    def _parts(self, start: int, stop: int) -> Iterator[tuple[Row, int, int]]:
        """Yield the tensors with these bytes of the stack, and the range of bytes within each."""
        each = self._rows[0].nbytes
        for number in range(start // max(each, 1), -(-stop // max(each, 1))):
            yield self._rows[number], max(start - number * each, 0), min(stop - number * each, each)

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[np.uint8]]:
        for row, first, last in self._parts(start, stop):
            for chunk in row.source.chunks(row.offset + first, last - first):
                yield np.frombuffer(chunk, np.uint8)
