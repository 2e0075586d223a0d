"""Files that are copied with a model to another directory: configuration, tokenizer, code, terms."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from typing import TYPE_CHECKING, Any

from weightmap._messages import quoted
from weightmap.checkpoints.configuration import SIDECARS, without_quantisation
from weightmap.core.bytes import open_source, strict_json
from weightmap.core.bytes.atomic import write_plan
from weightmap.core.bytes.sink import Sink, WritePlan
from weightmap.core.model.internals import folder_opened, sources_of
from weightmap.core.native import checksums
from weightmap.errors import FormatError, TargetError, TensorFileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from weightmap.core.bytes.source import Source

# Files that programs read beside a model in a Hugging Face directory, and the model's terms. `convert` copies them to a
# new directory, and no target replaces them.
COMPANIONS = (
    "config.json",
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "dict.txt",
    "bpe.codes",
    "tokenizer.model",
    "tiktoken.model",
    "sentencepiece.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "source.spm",
    "target.spm",
    "target_vocab.json",
    "tekken.json",
    "normalizer.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
    "NOTICE.txt",
    "USE_POLICY.md",
)


def check_not_read(file: Any, *targets: str) -> None:
    """Raise `TargetError` if a path names a file of a model, a shard, its directory, or one of `COMPANIONS` in it."""
    opened = folder_opened(file)
    check_apart(sources_of(file), targets, COMPANIONS if opened is None else (*COMPANIONS, os.path.abspath(opened)))


def check_apart(sources: Sequence[Source], targets: Iterable[str], siblings: Iterable[str] = ()) -> None:
    """Raise `TargetError` if a path leads to a source file, or to one of the `siblings` of the first."""
    there = _identities(targets)
    if not there:
        return
    # Device and inode come first; objects in stores have others.
    inputs = dict.fromkeys((source.identity[:2] for source in sources), "this file is an input")
    folder = os.path.dirname(sources[0].name)
    others = _identities([os.path.join(folder, name) for name in siblings])
    inputs |= dict.fromkeys(others.values(), "this belongs to the source")
    for target, identity in there.items():
        if identity in inputs:
            raise TargetError(f"{inputs[identity]}, and would be replaced: choose another target", path=target)


def _identities(paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return device and inode of each existing file."""
    identities = {}
    for path in paths:
        with contextlib.suppress(OSError, ValueError):  # writing will report the problem
            status = os.stat(path)
            identities[path] = status.st_dev, status.st_ino
    return identities


# The list of modules of sentence-transformers; files to look for in a module's folder if the store cannot list.
_MODULES, _OF_MODULES = "modules.json", ("config.json", "model.safetensors", "pytorch_model.bin")
# Folders of modules have at most this depth, and are few.
_DEEPEST = 3
# The folder of named chat templates.
TEMPLATES = "additional_chat_templates"
# Keys for the type of the tensors in a configuration, and the types in which PyTorch computes.
_DTYPE_KEYS, _DTYPES = ("dtype", "torch_dtype"), ("float16", "bfloat16", "float32", "float64")


class CompanionFiles:
    """The files that programs read beside a model in a Hugging Face directory, to be copied to a new directory.

    The constructor finds and checks them, before anything is written. No file is replaced: a file with the content of
    its copy stays, and so does the source's own file.

    Parameters
    ----------
    model, folder : str
        The model file or index in the old directory, and the new directory.
    trust : weightmap.trust.checking.Trust, optional
        The digests that the files must have. Copies are then made from the memory that was hashed.
    dtype : str, optional
        The type to which all floating-point tensors were converted. It replaces their type in ``config.json``.
    replace : bool
        Replace copies of an earlier run, which its manifest lists.
    decoded : bool
        Whether quantised parameters were decoded: descriptions of the quantisation are then left out, in
        ``config.json``, its sub-configurations, and separate files.

    Raises
    ------
    TargetError
        When a file exists with other content.
    FormatError
        When ``modules.json`` is damaged, or names a hidden folder or a folder elsewhere; when ``config.json`` is
        damaged; when a link leads to a file elsewhere: the copy may be published.
    TrustError
        When a file has a wrong digest, or none.
    NotRegularFileError
        When a file is a FIFO, socket or device, or a loop of links.

    Attributes
    ----------
    names : tuple of str
        The names to look for.
    """

    def __init__(
        self,
        model: str,
        folder: str,
        trust: Any = None,
        *,
        dtype: str | None = None,
        replace: bool = False,
        decoded: bool = False,
    ) -> None:
        self._source_folder, self._folder, self._replace = open_source.folder_of(model), folder, replace
        self._model, self._trust = model, trust
        names = companions(self._source_folder, trust)
        self.names = tuple(name for name in names if not (decoded and name in SIDECARS))
        self._config: bytes | None = None  # the new content of the configuration, if it differs
        for name, target, source in self._sources():
            if name == "config.json":
                self._config = _changed_config(source, dtype, decoded=decoded)
            _lies_at(target, self._new(name, source), replace=replace)

    def _sources(self) -> Iterator[tuple[str, str, Source]]:
        """Yield name, target and source of each existing file that is not its own target."""
        mode = "mmap" if self._trust is None else "copy"
        for name in self.names:
            path, target = open_source.inside(self._source_folder, name), os.path.join(self._folder, name)
            try:
                source = open_source.from_path(path, mode)
            except (FileNotFoundError, IsADirectoryError):
                continue
            with contextlib.closing(source):
                open_source.check_near(path, self._model)
                if source.identity[:2] == _identities([target]).get(target):
                    continue
                if self._trust is not None:
                    self._trust.admit(source)
                yield name, target, source

    def _new(self, name: str, source: Source) -> Source:
        """Return the content of a copy."""
        changed = self._config is not None and name == "config.json"
        return open_source.from_buffer(self._config, "mmap") if changed else source

    def copy(self) -> tuple[str, ...]:
        """Copy the files; return their names. Raises `TargetError` if one has appeared meanwhile with other content."""
        copied = []
        for name, target, source in self._sources():
            new = self._new(name, source)
            if not _lies_at(target, new, replace=self._replace):
                os.makedirs(os.path.dirname(target) or os.curdir, exist_ok=True)
                try:
                    write_plan(target, WritePlan(new.size, functools.partial(_copy, new)), overwrite=self._replace)
                except TargetError:
                    if not _lies_at(target, new):  # another rank may have written it meanwhile
                        raise
            copied.append(name)
        return tuple(copied)


def companions(folder: str, trust: Any = None) -> Iterator[str]:
    """Yield the names in a directory to copy with a model, without hidden ones; some names may not be files."""
    there = _names_in(folder, COMPANIONS)
    yield from (name for name in COMPANIONS if name in there)
    if "config.json" in there:  # only this file tells which code belongs to the model
        yield from sorted(name for name in there if name.endswith(".py"))
    yield from _chat_templates(folder)
    inner_folders = _folders(folder, trust) if _MODULES in there else []
    yield from dict.fromkeys(name for inner in inner_folders for name in _below(folder, inner))


def _chat_templates(folder: str) -> list[str]:
    """Return the names of a directory's further chat templates; none if its store cannot list."""
    within = open_source.inside(folder, f"{TEMPLATES}/")
    names = _names_in(within, ()) if open_source.is_directory(within) else ()
    return sorted(f"{TEMPLATES}/{name}" for name in names if name.endswith(".jinja"))


def _names_in(folder: str, others: Sequence[str]) -> list[str]:
    """Return the names in a directory, or `others` if its store cannot list, without hidden names."""
    return [name for name in open_source.names_in(folder, others) if not open_source.is_hidden(name)]


def _below(folder: str, inner: str) -> Iterator[str]:
    """Yield the names of the files in a folder of a directory."""
    for name in sorted(_names_in(open_source.inside(folder, f"{inner}/"), _OF_MODULES)):
        path = f"{inner}/{name}"
        if path.count("/") < _DEEPEST and open_source.is_directory(open_source.inside(folder, path)):
            yield from _below(folder, path)
        else:
            yield path


def _folders(folder: str, trust: Any) -> list[str]:
    """Return the folders of the modules of sentence-transformers."""
    path = open_source.inside(folder, _MODULES)
    opening = b'{"modules": '  # the parser takes an object, and this is an array
    try:
        content = opening + (open_source.read_small(path, trust) or b"") + b"}"
        modules = strict_json.loads(content, _MODULES, offset=-len(opening))["modules"]
        modules = modules if isinstance(modules, list) else [modules]
        paths = [module.get("path") if isinstance(module, dict) else None for module in modules]
    except TensorFileError as error:
        error.offset = None if error.offset is None else max(error.offset, 0)  # not inside `opening`
        raise error.located(path=path) from None
    folders: list[str] = []
    for name in paths:
        inner = open_source.plain(name.removeprefix("./")) if isinstance(name, str) else ".."
        if inner and (not open_source.stays_inside(inner) or open_source.is_hidden(inner)):
            actual = quoted(name) if isinstance(name, str) else strict_json.kind_of(name)
            expected = "a folder in this directory that is not hidden"
            raise FormatError("path of a module", path=path, field="path", actual=actual, expected=expected)
        folders.append(inner)
    # The model itself has no folder, and modules without files may lack theirs.
    return [name for name in folders if name and open_source.is_directory(open_source.inside(folder, f"{name}/"))]


def _changed_config(source: Source, dtype: str | None, *, decoded: bool) -> bytes | None:
    """Return a configuration with this type, perhaps without quantisation; None if nothing changes."""
    if dtype not in _DTYPES and not decoded:
        return None
    config = strict_json.loads(source.pread(0, source.size), "config.json", constants=True)
    result = without_quantisation(config) if decoded else dict(config)
    if dtype in _DTYPES:
        result |= {key: dtype for key in _DTYPE_KEYS if isinstance(config.get(key), str)}
    return None if result == config else f"{json.dumps(result, indent=2, ensure_ascii=False)}\n".encode()


def is_whole(path: str, nbytes: int, crc: int) -> bool:
    """Whether a file has this size and checksum."""
    try:
        source = open_source.from_path(path, "mmap")
    except (OSError, TensorFileError):  # it does not exist, or is not a file
        return False
    with contextlib.closing(source):
        return source.size == nbytes and _crc_of(source) == crc


def _crc_of(source: Source) -> int:
    """Return the checksum of a file."""
    return functools.reduce(lambda crc, chunk: checksums.crc32(chunk, crc), source.chunks(0, source.size), 0)


def _lies_at(path: str, new: Source, *, replace: bool = False) -> bool:
    """Whether a copy is already there; raise `TargetError` if another file is there that must not be replaced."""
    if not os.path.lexists(path):
        return False
    if is_whole(path, new.size, _crc_of(new)):
        return True
    if not replace:
        msg = "this file exists, with other content than its copy would have: remove it, or choose another target"
        raise TargetError(msg, path=path)
    return False


def _copy(source: Source, sink: Sink) -> None:
    for chunk in source.chunks(0, source.size):
        sink.write(chunk)
