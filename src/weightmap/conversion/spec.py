"""The request of a conversion, as plain values that any process understands, and its view of the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from weightmap._messages import counted, quoted
from weightmap.checkpoints.configuration import as_parameters
from weightmap.checkpoints.pieced import REPACKED, TargetTypes
from weightmap.checkpoints.weights import storage_of
from weightmap.conversion.quantizer import Quantize, Quantizer
from weightmap.core import arguments
from weightmap.core.arguments import DEFAULT_LIMITS, Globs, Options, listed, matches, takes
from weightmap.core.dtypes import FLOATING, SHORT, name_of_dtype
from weightmap.core.formats import FORMATS, Format, by_name
from weightmap.core.model.codes import check_computable
from weightmap.core.model.internals import name_of, parts_of, rows_of
from weightmap.core.model.saving import Output
from weightmap.errors import EncodeError, Remedy
from weightmap.llama import PROGRAM
from weightmap.llama.translating import as_llama, recognised, shape_of, unknown

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from weightmap.core.model.file import TensorFile
    from weightmap.llama.tensors import Shape


_PRIVATELY = Options(DEFAULT_LIMITS, private=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The arguments of `weightmap.convert` that apply to every file of the new model."""

    format: str = ""
    output: Output = field(default_factory=Output)
    include: Globs = None
    exclude: Globs = None
    dtype: str | None = None
    quantize: Quantize | None = None
    max_shard_size: int | None = None
    threads: int | None = None
    weights: bool = False  # whether the tensors are parameters: see `TensorFile.weights`
    translated: bool = False  # whether names become llama.cpp's: see `weightmap.llama`
    shape: Shape | None = None  # of a model under llama.cpp's names, if types depend on it
    configured: bool = False  # whether a ``config.json`` lies beside the model
    # Options for opening the files of the source again.
    opening: Options = field(default=_PRIVATELY, repr=False, compare=False)

    def of(self, source: Any, target: Any, quantize: Quantize | None) -> Spec:
        """Return the arguments, completed from source and target."""
        directory = target.directory
        return replace(
            self,
            format=target.record.name,
            quantize=quantize,
            weights=source.weights,
            configured=directory is not None and bool(directory.metadata),
            opening=parts_of(source.file)[2],
        )

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
        """Whether the tensors differ from the stored ones: the source is then opened as a whole."""
        return self.weights or self.translated

    @property
    def decoded(self) -> str | None:
        """The type to which quantised parameters are decoded before conversion; None for the model's own."""
        return None if self.dtype is None or self.quantize is not None else "float32"

    @property
    def repacked(self) -> TargetTypes:
        """The types to which quantised parameters are repacked, if these hold the same numbers."""
        how, repacked = self.quantize, REPACKED & frozenset().union(*self.target_format.schemes.values())
        if how is not None:
            return TargetTypes(repacked & {how.usual}, how.block_size, how.scale_type, self.takes)
        return TargetTypes(repacked if self.dtype is None else frozenset(), takes=self.takes)

    def takes(self, name: str) -> bool:
        """Say whether a tensor of this name is converted."""
        return takes(name, self.include, self.exclude)

    def check_globs(self, names: Collection[str], source: str) -> None:
        """Raise `EncodeError` for a glob that matches no tensor of a model, and for globs that leave no tensor."""
        how, globs_of = self.quantize, {"include": self.include, "exclude": self.exclude}
        if self.include is self.exclude is None and (how is None or how.include is how.exclude is None):
            return
        count = counted(len(names), "tensor")
        if how is not None:
            globs_of |= {"Quantize.include": how.include, "Quantize.exclude": how.exclude}
        for option, globs in globs_of.items():
            useless = [glob for glob in listed(globs) if not any(matches(name, glob) for name in names)]
            if useless:
                raise EncodeError(f"{option} is {_spelt(useless)}, which matches none of {count}", path=source)
        if not any(map(self.takes, names)) and (names or self.include is not None):
            option = "include" if self.include == () else "exclude"
            raise EncodeError(f"{option} is {_spelt(globs_of[option])}, which leaves none of {count}", path=source)
        chosen = None if how is None else how.include
        if chosen is not None and not any(self.takes(name) and matches(name, chosen) for name in names):
            raise EncodeError(f"Quantize.include is {_spelt(chosen)}, which matches none of {count}", path=source)

    def renamed(self, names: Collection[str], rename: arguments.Rename | None, source: str) -> dict[str, str]:
        """Return the new name of each renamed tensor.

        Raises `EncodeError` for a mapping that names no tensor, and TypeError for anything but names.
        """
        if rename is None:
            return {}
        if isinstance(rename, Mapping):
            whole, unused = arguments.whole_names(names, rename)
            if names and rename and len(unused) == len(rename):
                some = ", ".join(map(quoted, unused[:3]))
                what = f"rename has {some}, the name of none of {counted(len(names), 'tensor')}"
                raise EncodeError(what, path=source)
            rename = whole
        return {old: new for old, new in arguments.new_names(filter(self.takes, names), rename).items() if new != old}


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


def _translates(file: TensorFile, spec: Spec, names: str, *, whole: bool) -> tuple[bool, str]:
    """Return whether a conversion translates names, and the obstacle if it should but cannot.

    `whole` says that the source is a directory or an index. Raises `EncodeError` if the caller requires a translation
    and it is impossible.
    """
    strictly, target = names == PROGRAM, spec.target_format
    if target.program != PROGRAM:
        if strictly:
            what = f"{PROGRAM} reads GGUF, and the target is {target.title}"
            raise EncodeError(what, remedy=Remedy("leave {} out", "names", PROGRAM))
        return False, ""
    source = FORMATS.get(file.format)
    if names == "keep" or source is None or source.program == PROGRAM or not (whole or strictly):
        return False, ""
    llama_model = recognised(file, strictly=strictly, weights=spec.weights)
    return llama_model is not None, "" if llama_model is not None else unknown(file)


def checked_view(spec: Spec, stored: TensorFile, names: str, *, whole: bool) -> tuple[TensorFile, Spec, list[str]]:
    """Return the conversion's view of a model, the completed arguments, and warnings.

    `whole` says that the source is a directory or an index. Raises as `conversion_view` does; also `EncodeError` for
    impossible names or mixtures, and `UnsupportedError` if the conversion would take stored codes for values.
    """
    if not spec.weights and (spec.dtype is not None or spec.quantize is not None):
        what = "dtype" if spec.quantize is None else "quantising"
        check_computable(stored, spec.takes, what)
    translated, why = _translates(stored, spec, names, whole=whole)
    spec = replace(spec, translated=translated)
    file, notes = conversion_view(stored, spec)
    hint = why or ("" if whole else "a Hugging Face directory gets them")
    return file, _with_shape(spec, file, hint), [*([why] if why else []), *notes]


def conversion_view(file: TensorFile, spec: Spec, *, with_keys: bool = True) -> tuple[TensorFile, list[str]]:
    """Return the conversion's view of a model, and warnings.

    Raises as `as_parameters` and `as_llama` do; also `EncodeError` if the integers of a parameter do not give the
    scheme that `quantize` requests.
    """
    notes: list[str] = []
    plain = None
    if spec.weights:
        stored = file
        file = _parameters(file, spec)
        plain = lambda: as_parameters(stored, spec.decoded)  # noqa: E731 - called where experts differ
    if spec.translated:
        how = spec.quantize
        kind = spec.dtype if how is None else how.scheme
        file, notes = as_llama(file, kind, with_keys=with_keys, plain=plain)
    return file, notes


def _with_shape(spec: Spec, file: TensorFile, why: str) -> Spec:
    """Return the arguments with the shape that a mixture needs. Raises `EncodeError` if the model has none.

    `why` tells why the model did not get llama.cpp's names, or how to get them.
    """
    how = spec.quantize
    mixture = None if how is None else how.mixture
    if not (mixture or spec.translated):
        return spec
    shape = shape_of(file.metadata, file)
    if how is not None and mixture and (shape is None or spec.target_format.program != PROGRAM):
        raise EncodeError(
            f"{mixture} is a mixture of {PROGRAM}: it needs {PROGRAM}'s names, which this model does not get"
            f"{f' ({why})' if why else ''}; other programs may read {how.usual}, {PROGRAM} would not"
        ).located(path=name_of(file))
    return replace(spec, shape=shape)


def _parameters(file: TensorFile, spec: Spec) -> TensorFile:
    """Return the parameters of a model; refuse integers that do not give the scheme that `quantize` requests."""
    parameters: TensorFile = as_parameters(file, spec.decoded, spec.repacked)
    if spec.quantize is not None:
        quantizer = Quantizer(spec.quantize)
        refused = tuple(
            f"parameter {quoted(name)} is {how[0]}, which {spec.quantize.usual} cannot hold exactly"
            for name, row in zip(parameters, rows_of(parameters), strict=True)
            if (how := storage_of(row)) is not None and spec.takes(name) and quantizer.wants(name, row)
        )
        if refused:
            what = f"{refused[0]} ({counted(len(refused), 'such parameter')}): decode it to a file first"
            raise EncodeError(what).naming(refused).located(path=name_of(file))
    return parameters
