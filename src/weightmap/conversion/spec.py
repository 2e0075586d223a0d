"""The arguments of a conversion as plain values that any process understands: `Spec`, and `Quantize` in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from weightmap.checkpoints.repacking import REPACKED, TargetTypes
from weightmap.core.arguments import as_float, as_globs, as_integer, listed, matches, mistyped, takes
from weightmap.core.dtypes import FLOATING, GGML_SCHEMES, SHORT, name_of_dtype, scale_type_named
from weightmap.core.formats import Format, by_name
from weightmap.core.model.saving import Output
from weightmap.core.native import quantised
from weightmap.core.options import DEFAULT_LIMITS, Options
from weightmap.core.quant.quantizing import folded, quantize, scheme_named
from weightmap.core.quant.schemes import BLOCKED
from weightmap.errors import EncodeError, QuantError, counted, quoted
from weightmap.llama.tensors import MIXTURES

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import DTypeLike

    from weightmap.core.arguments import Globs
    from weightmap.core.quant.blocks import QuantizedTensor
    from weightmap.llama.tensors import Shape

Rename: TypeAlias = "Mapping[str, str] | Callable[[str], str] | None"


@dataclass(frozen=True, slots=True)
class Quantize:
    """How `convert` quantises tensors. For a scheme with its defaults, pass its name: ``quantize="q4_0"``.

    Parameters
    ----------
    scheme : str
        A scheme of `weightmap.quantize`, or a mixture of llama.cpp, for models under its names in GGUF: "q3_k_s",
        "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m".
    block_size : int
        Elements per block, for int4_block, int5_block and adaptive.
    scale_type : str or numpy.dtype
        "fp16" or "fp32", by any of their names.
    bits : float
        For adaptive: bits per weight, 4.5 to 16.
    include, exclude : glob or sequence of globs, optional
        Quantise floating-point tensors whose name matches an `include` and no `exclude`, whatever their shape; without
        `include`, tensors of two dimensions or more that are not embeddings (by their names). A glob that matches no
        tensor of the model is an EncodeError.

    Raises
    ------
    QuantError
        For an unknown scheme, and for a block size, scale type or bits that the scheme does not allow.

    Examples
    --------
    >>> import numpy as np, weightmap as wm
    >>> wm.save("model.safetensors", {"up": np.ones((4, 64), np.float32), "norm": np.ones((4, 64), np.float32)})
    >>> how = wm.Quantize("int4_block", block_size=64, exclude="*norm*")
    >>> wm.convert("model.safetensors", "model.amb", quantize=how).quantized[0].scheme
    'int4_block'
    """

    scheme: str
    _: KW_ONLY
    block_size: int = 32
    scale_type: str = "fp16"
    bits: float = 5.0
    include: Globs = None
    exclude: Globs = None

    def __post_init__(self) -> None:
        """Check the values, and bring names into the spelling used here."""
        name = folded(self.scheme)
        known = {
            "scheme": name if name in MIXTURES else scheme_named(self.scheme),
            "block_size": as_integer("block_size", self.block_size),
            "scale_type": scale_type_named(self.scale_type),
            "bits": as_float("bits", self.bits),
            "include": as_globs("include", self.include),
            "exclude": as_globs("exclude", self.exclude),
        }
        for name, value in known.items():
            object.__setattr__(self, name, value)
        scheme = self.usual
        if scheme not in (*BLOCKED, "adaptive") and self.block_size != 32:
            kind = "blocks of one size" if scheme in GGML_SCHEMES else "no blocks"
            raise QuantError(f"block_size is for {', '.join(BLOCKED)} and adaptive: {scheme} has {kind}")
        if scheme != "adaptive" and self.bits != 5:
            raise QuantError(f"bits is for adaptive: {scheme} has a fixed number of bits")
        if scheme != "pq":
            quantize_zeros(self, 1)
        elif self.include is not None or self.exclude is not None:
            raise QuantError("pq is for word embeddings: Pq(include=...) of weightmap.words.convert chooses a matrix")

    @property
    def mixture(self) -> str | None:
        """The scheme, where it is a mixture."""
        return self.scheme if self.scheme in MIXTURES else None

    @property
    def usual(self) -> str:
        """The scheme; of a mixture, the scheme of most tensors."""
        return MIXTURES.get(self.scheme, self.scheme)


def quantize_zeros(how: Quantize, threads: int) -> QuantizedTensor:
    """Quantise a row of zeros this way, and return it. Raises `QuantError` for values that do not go together."""
    row = quantised.GGML_TYPES[how.usual].block_size if how.usual in GGML_SCHEMES else 1
    return quantize(np.zeros(row, np.float32), how.usual, **quantize_options(how), threads=threads)


def quantize_options(how: Quantize) -> dict[str, Any]:
    """Return the options of `weightmap.quantize`."""
    return {"block_size": how.block_size, "scale_type": how.scale_type, "bits": how.bits}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The arguments of `weightmap.convert` that hold for every file of the new model."""

    format: str
    output: Output = field(default_factory=Output)
    include: Globs = None
    exclude: Globs = None
    dtype: str | None = None
    quantize: Quantize | None = None
    max_shard_size: int | None = None
    threads: int | None = None
    weights: bool = False  # whether the tensors are parameters: see `TensorFile.weights`
    translated: bool = False  # whether names become llama.cpp's: see `weightmap.llama`
    shape: Shape | None = None  # of a model under llama.cpp's names, where types depend on them
    configured: bool = False  # whether a ``config.json`` lies beside the model
    # How the files of the source are opened, by whoever opens them again.
    opening: Options = field(default_factory=lambda: Options(DEFAULT_LIMITS, private=True), repr=False, compare=False)

    @property
    def target_format(self) -> Format:
        """The format of the target."""
        return by_name(self.format)

    @property
    def result(self) -> tuple[Any, ...]:
        """The arguments on which the bytes of the result depend."""
        output = self.output.layout, self.output.alignment, self.output.checksums
        values = *output, self.include, self.exclude, self.dtype, self.quantize, self.max_shard_size
        return (self.format, *values, self.configured, self.weights, self.translated)

    @property
    def is_view(self) -> bool:
        """Whether the tensors are others than those stored: the files of the source are opened as one."""
        return self.weights or self.translated

    @property
    def decoded(self) -> str | None:
        """The type that quantised parameters are decoded to before they are converted; None for their own."""
        return None if self.dtype is None or self.quantize is not None else "float32"

    @property
    def repacked(self) -> TargetTypes:
        """What quantised parameters are repacked to, where it holds the same numbers."""
        how, held = self.quantize, REPACKED & frozenset().union(*self.target_format.schemes.values())
        if how is not None:
            return TargetTypes(held & {how.usual}, how.block_size, how.scale_type, self.takes)
        return TargetTypes(held if self.dtype is None else frozenset(), takes=self.takes)

    def takes(self, name: str) -> bool:
        """Say whether a tensor of this name is converted."""
        return takes(name, self.include, self.exclude)

    def check_globs(self, names: Collection[str], source: str) -> None:
        """Raise `EncodeError` for a glob that no tensor of a model matches, and for globs that leave none of them."""
        how, count = self.quantize, counted(len(names), "tensor")
        given = {"include": self.include, "exclude": self.exclude}
        if how is not None:
            given |= {"Quantize.include": how.include, "Quantize.exclude": how.exclude}
        for option, globs in given.items():
            useless = [glob for glob in listed(globs) if not any(matches(name, glob) for name in names)]
            if useless:
                raise EncodeError(f"{option} is {_spelt(useless)}, which matches none of {count}", path=source)
        if not any(map(self.takes, names)) and (names or self.include is not None):
            option = "include" if self.include == () else "exclude"
            raise EncodeError(f"{option} is {_spelt(given[option])}, which leaves none of {count}", path=source)
        chosen = None if how is None else how.include
        if chosen is not None and not any(self.takes(name) and matches(name, chosen) for name in names):
            raise EncodeError(f"Quantize.include is {_spelt(chosen)}, which matches none of {count}", path=source)

    def renamed(self, names: Collection[str], rename: Rename, source: str) -> dict[str, str]:
        """Return the new name of each tensor that is converted under another one.

        Raises `EncodeError` for a mapping that names no tensor, and TypeError for anything but names.
        """
        if rename is None:
            return {}
        if isinstance(rename, Mapping):
            if names and rename and not any(name in rename for name in names):
                some = ", ".join(map(quoted, list(rename)[:3]))
                raise EncodeError(
                    f"rename has {some}, the name of none of {counted(len(names), 'tensor')}", path=source
                )
            given, rename = rename, lambda name: given.get(name, name)
        if not callable(rename):
            raise mistyped("rename", rename, "a mapping of names or a function of a name")
        changed = {}
        for name in filter(self.takes, names):
            new = rename(name)
            if not isinstance(new, str):
                raise mistyped(f"the new name of tensor {quoted(name)}", new, "a str")
            if new != name:
                changed[name] = new
        return changed


def _spelt(globs: Globs) -> str:
    """Spell globs for a message."""
    return ", ".join(map(quoted, listed(globs))) or "empty"


def floating(dtype: DTypeLike | str) -> str:
    """Return the name of a floating-point type. Raises ValueError for any other."""
    try:
        name = name_of_dtype(dtype)
    except TypeError:
        name = repr(dtype)
    if name not in FLOATING:
        raise ValueError(f"dtype is {name}, expected one of {', '.join((*FLOATING, *SHORT))}")
    return name
