"""Load format "weightmap" of vLLM, and the same loader for SGLang; only functions import vllm and sglang.

vLLM finds `register` by the entry-point group ``vllm.general_plugins`` in each of its processes::

    python -m vllm.entrypoints.openai.api_server --model ./model --load-format weightmap

The model is a directory with ``config.json`` and files of safetensors, EMBD, BinTensors, AMB or GGUF, whose tensors
have Hugging Face's names.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import os
import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap._messages import quoted
from weightmap.core.bytes.open_source import inside, names_in, path_of, sibling_path
from weightmap.core.formats import FORMATS, of_ranks
from weightmap.core.model.opening import open as open_model
from weightmap.core.model.single import INDEX_SUFFIX, USUAL_NAMES
from weightmap.deltas.overlay import open as open_under_deltas
from weightmap.deltas.pulling import chain_to
from weightmap.errors import NotRegularFileError, UnknownFormatError, UnsupportedError
from weightmap.plans.planning import ReadPlan, plan
from weightmap.torch._device import TorchExchange, load_plan
from weightmap.torch._tensors import read_tensor, writable_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from weightmap.core.model.file import TensorFile
    from weightmap.device import Exchange
    from weightmap.plans.delivery import Check
    from weightmap.typing import Mode, Verify

__all__ = [
    "ExtraConfig",
    "has_head",
    "loader_class",
    "model_files",
    "register",
    "register_sglang",
    "sglang_loader_class",
]

_FORMATS = ("safetensors", "embd", "bintensors", "amb", "gguf")
_USUAL_INDEX = USUAL_NAMES[0]
# A setting of the stock loader that does not concern files: whether every parameter must come from the checkpoint.
_STOCK = ("enable_weights_track",)
_CHOICES = {"mode": ("mmap", "cow", "copy", "sealed", "direct"), "verify": ("header", "full", "none")}
# Bytes of tensors that share a piece of a GPU's memory. Three pieces exist besides the model: the one from which vLLM
# copies, the next one, and the one with the tensor that its loop still holds.
_GROUP = (512 << 20) // 3
# llama.cpp's names for the tensors of layers.
_LLAMA_CPP = re.compile(r"blk\.\d+\.")


class ExtraConfig(NamedTuple):
    """The settings in ``model_loader_extra_config``."""

    mode: Mode | None = None
    verify: Verify = "full"
    threads: int | None = None
    upload: bool = True
    exchange: bool = True
    deltas: str | None = None
    trust: Any = None

    @classmethod
    def of(cls, config: Any) -> tuple[ExtraConfig, dict[str, Any]]:
        """Return the settings, and the configuration for the stock loader; `config` itself stays unchanged.

        Parameters
        ----------
        config : dict
            ``mode`` as for `weightmap.open`, by default the mode that suits the device. ``verify``, "full" by default:
            checksums of tensors, if the file has any, are computed as the tensors are handed out, and a wrong one
            raises an error before the last of them; "header" and "none" as for `weightmap.open`. ``threads``: the
            number that bring a file into memory before its tensors are used, 8 by default, 0 for none. ``upload``
            (default: true): whether tensors for a model on a GPU go there by `weightmap.device` before the model takes
            its parts of them. ``exchange`` (default: true): whether each rank of a tensor-parallel model then reads a
            part of the bytes, and gets the rest from the other devices. ``deltas``: a directory of published versions
            (see `weightmap.deltas`); the newest is loaded, or the version in the path, ``DIR/weight_vNNNNNN``, which
            several ranks need. ``trust`` as for `weightmap.open` ("recorded", the path of a list, or a mapping of
            digests): each file is then read into memory, unless ``mode`` is given, and its tensors consist of the bytes
            that were hashed, while the next file is being read and hashed.

        Raises
        ------
        TypeError, ValueError
            For an unknown key or a wrong value.
        """
        keys = (*cls._fields, *_STOCK)
        if not isinstance(config, dict):
            raise TypeError(f"model_loader_extra_config is a {type(config).__name__}, expected a dictionary")
        unknown = [key for key in config if key not in keys]
        if unknown:
            what = f"unknown keys in model_loader_extra_config: {', '.join(map(quoted, unknown))}"
            raise ValueError(f"{what}; load format weightmap knows {', '.join(keys)}")
        for key, choices in _CHOICES.items():
            if key in config and config[key] not in choices:
                raise ValueError(f"{key} is {config[key]!r}, expected one of {', '.join(choices)}")
        threads = config.get("threads", 0)
        if type(threads) is not int or threads < 0:
            raise ValueError(f"threads is {threads!r}, expected a number, 0 for none")
        for key in ("upload", "exchange"):
            if not isinstance(config.get(key, True), bool):
                raise ValueError(f"{key} is {config[key]!r}, expected True or False")  # noqa: TRY004 - as for others
        if not isinstance(config.get("deltas", ""), str):
            raise ValueError(f"deltas is {config['deltas']!r}, expected a directory of versions")  # noqa: TRY004 - as for others
        if not isinstance(config.get("trust"), (str, os.PathLike, dict, type(None))):
            raise TypeError(f"trust is a {type(config['trust']).__name__}, expected a text or a dictionary")
        settings = cls(**{key: config[key] for key in cls._fields if key in config})
        return settings, {key: config[key] for key in _STOCK if key in config}


def model_files(folder: str) -> tuple[list[str], str]:
    """Return the paths of a model's files, and the name of its index of shards, or the usual name without an index.

    `folder` may be an address; if a server cannot list, the index or file of a usual name is found.

    Files that an index does not name are left out, as in the stock loader: they repeat the same weights.

    Raises
    ------
    NotRegularFileError
        When the directory has no model files.
    UnknownFormatError
        When it has several indices and none has the usual name, or, without an index, files of several formats.
    FormatError
        When the index or a shard is damaged, or a shard is missing; or when each file holds parts of tensors.
    """
    suffixes = {format_: FORMATS[format_].suffixes for format_ in _FORMATS}
    every = tuple(suffix for endings in suffixes.values() for suffix in endings)
    where = path_of(folder) or folder
    names = sorted(names_in(where, USUAL_NAMES), key=_natural)
    indices = [name for name in names if name.endswith(INDEX_SUFFIX) and name[: -len(INDEX_SUFFIX)].endswith(every)]
    if _USUAL_INDEX in indices:
        indices = [_USUAL_INDEX]
    if len(indices) > 1:
        msg = f"this directory has several indices of shards: {', '.join(map(quoted, indices[:10]))}"
        raise UnknownFormatError(msg, path=folder)
    if indices:
        with open_model(inside(where, indices[0])) as model:
            shards = sorted(model.shards, key=_natural)
        return [inside(where, name) for name in shards], indices[0]
    by_format = {endings: [name for name in names if name.endswith(endings)] for endings in suffixes.values()}
    present = [files for files in by_format.values() if files]
    if not present:
        raise NotRegularFileError(f"this directory has no model file ({', '.join(every)})", path=folder)
    if len(present) > 1:
        msg = f"this directory has model files of several formats: {', '.join(quoted(files[0]) for files in present)}"
        raise UnknownFormatError(msg, path=folder)
    files = present[0]
    if len(files) > 1 and (parts := of_ranks(files, folder)) is not None:
        raise parts
    return [inside(where, name) for name in files], _USUAL_INDEX


def under_deltas(folder: str, published: str) -> tuple[list[str], list[str]]:
    """Return the files and the deltas of the version that the setting `deltas` requests.

    A model of several files is then opened by its index.

    Raises
    ------
    DeltaError
        When deltas do not lead to the version.
    UnsupportedError
        When the model has several files and no index.
    """
    folder, deltas = chain_to(folder, published)
    files, index = model_files(folder)
    if not deltas or len(files) == 1:
        return files, deltas
    path = os.path.join(folder, index)
    if not os.path.exists(path):
        what = "deltas need a model with one file or an index: this model has several files and no index"
        raise UnsupportedError(what, path=folder)
    return [path], deltas


def _is_folder(path: str) -> bool:
    """Whether a path is a local directory, or an address."""
    return "://" in path or os.path.isdir(path)


def _natural(name: str) -> list[Any]:
    """Return a key that sorts numbers in names by value, as the stock loader sorts shards."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", os.path.basename(name))]


def has_head(paths: Iterable[str]) -> bool:
    """Whether a checkpoint has its own ``lm_head``."""
    for path in paths:
        with open_model(path) as file:
            if any(name.endswith("lm_head.weight") for name in file):
                return True
    return False


def tensors(
    paths: Iterable[str],
    settings: ExtraConfig,
    *,
    shared: bool,
    skip: Callable[[str], bool] = lambda _: False,
    local: tuple[int, int] = (0, 1),
    device: Any = None,
    deltas: Sequence[str] = (),
    exchange: Exchange | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yield names and tensors of files in the order of their bytes.

    Parameters
    ----------
    paths : iterable of str
    settings : ExtraConfig
    shared : bool
        Whether tensors may share the pages of files, copy-on-write, if the settings name no mode. Otherwise each tensor
        is a copy, because a driver that gets mapped pages may pin or migrate them.
    skip : callable
        ``skip(name)``: whether to leave a tensor out; its bytes are read only under a checksum that is checked.
    local : (int, int)
        The number of this process among the processes on this machine that load the same model, and their count: each
        brings a part of every file into memory.
    device : torch.device, optional
        The device for tensors, some at a time, if the settings allow it; by default they stay on the CPU.
    deltas : sequence of str
        Directories of the deltas over the one file, or index, in `paths`.
    exchange : Exchange, optional
        Ranks that load the same model to their own devices. If ranks want different tensors, each reads its own.
    """
    trusted = settings.trust is not None
    mode = settings.mode or ("copy" if trusted else writable_mode() if shared else "mmap")
    away = device is not None and settings.upload
    # Check during the loading pass: a caller that stops before the last tensor, unlike servers, gets some unchecked.
    check: Check = "last" if settings.verify == "full" else False
    opened: Verify = "header" if check else settings.verify
    done: set[str] = set()  # the first file of a split model opens all files
    paths = list(paths)
    if not away or (exchange is not None and not _agree(exchange, [os.path.basename(path) for path in paths])):
        exchange = None

    def open_one(path: str) -> TensorFile:
        if deltas:
            return open_under_deltas(path, deltas, mode=mode, verify=opened, trust=settings.trust)
        return open_model(path, mode=mode, verify=opened, trust=settings.trust)

    for path, model in _in_turn(paths, open_one, done, ahead=trusted):
        with model as file:
            done.update(sibling_path(path, name) for name in file.shards)
            names = [name for name in file if not skip(name)]
            if any(map(_LLAMA_CPP.match, names)):
                expected = "Hugging Face's, such as model.layers.0.input_layernorm.weight"
                raise UnsupportedError("naming of tensors", path=path, actual="llama.cpp's", expected=expected)
            reads = plan(file, names, local_rank=local[0], local_world_size=local[1])
            together = exchange if exchange is not None and _agree(exchange, _outline(reads)) else None
            # Reading for a device already uses many threads: warming only pays with other local ranks.
            if together is None and settings.threads != 0 and mode in {"mmap", "cow"} and (local[1] > 1 or not away):
                reads.warm(settings.threads)
            if away:
                yield from load_plan(reads, device, verify=check, group=_GROUP, exchange=together)
                continue
            for name, array in reads.run(verify=check):
                yield name, read_tensor(file, name, array)


def _agree(exchange: Exchange, value: Any) -> bool:
    """Whether all ranks have an equal value."""
    answers = exchange.tell(value)
    return answers.count(value) == len(answers)


def _outline(reads: ReadPlan) -> str:
    """Return a digest of a plan's reads."""
    infos = map(reads.file.info, reads.names)
    described = repr([(info.name, info.offset, info.nbytes) for info in infos])
    return hashlib.sha256(described.encode("utf-8", "surrogatepass")).hexdigest()


def _in_turn(
    paths: list[str], open_one: Callable[[str], TensorFile], done: set[str], *, ahead: bool
) -> Iterator[tuple[str, TensorFile]]:
    """Yield paths that are not `done`, with their open files; `ahead` opens each while the previous one is used."""
    # The first file of a split GGUF model also opens the others.
    if not ahead or any(path.endswith(".gguf") for path in paths):
        for path in paths:
            if path not in done:
                yield path, open_one(path)
        return
    following: list[Future[TensorFile]] = []
    with ThreadPoolExecutor(1) as pool:
        try:
            for number, path in enumerate(paths):
                following += [pool.submit(open_one, other) for other in paths[number + len(following) : number + 2]]
                yield path, following.pop(0).result()
        finally:
            for future in following:
                if not future.cancel() and future.exception() is None:
                    future.result().close()


def _stock_config(load_config: Any) -> tuple[ExtraConfig, Any]:
    """Return the settings, and a copy of a load configuration that the stock loader takes."""
    settings, stock_settings = ExtraConfig.of(load_config.model_loader_extra_config or {})
    stock = copy.copy(load_config)  # other loaders share the object
    stock.model_loader_extra_config = stock_settings
    return settings, stock


def _on_cpu(model: Any) -> bool:
    return all(parameter.device.type == "cpu" for parameter in model.parameters())


def _gpu_of(model: Any) -> Any:
    """Return the CUDA device of all parameters of a model; None if they have no such common device."""
    devices = [parameter.device for parameter in model.parameters()]
    return devices[0] if devices and devices[0].type == "cuda" and devices.count(devices[0]) == len(devices) else None


def _files_used(paths: list[str], unused: Callable[[str], bool]) -> list[str]:
    """Return the files with a used tensor; all files if no tensor is used, as in the stock loader."""

    def used(path: str) -> bool:
        with open_model(path) as file:
            return not all(map(unused, file))

    return [path for path in paths if used(path)] or paths


# ------------------------------------------------------------------------------------------------------------- vLLM


@functools.cache
def register() -> None:
    """Register the load format "weightmap" in vLLM; once in a process, however often it is called."""
    from vllm.model_executor.model_loader import register_model_loader

    register_model_loader("weightmap")(loader_class())


@functools.cache
def loader_class() -> Any:
    """Return the class of vLLM's loader: the stock one, with the files and tensors of this package."""
    from vllm.model_executor.model_loader import ep_weight_filter, weight_utils
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    class WeightmapModelLoader(DefaultModelLoader):  # type: ignore[misc]
        """Loads models by weightmap; see `ExtraConfig.of` for ``model_loader_extra_config``."""

        counter_before_loading_weights: float = 0.0

        def __init__(self, load_config: Any) -> None:
            self._settings, stock = _stock_config(load_config)
            stock.load_format = "safetensors"  # the files that the stock loader downloads
            super().__init__(stock)
            self._shared, self._gpu = False, None

        def create_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
            # vLLM looks for this tensor only in safetensors, and would drop it. If both are equal, it ties them again.
            config = model_config.hf_config
            if getattr(config, "tie_word_embeddings", False) and has_head(self._files_of(model_config)):
                config.tie_word_embeddings = config.get_text_config().tie_word_embeddings = False
                model_config.word_embeddings_untied_by_checkpoint = True
            return super().create_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)

        def load_weights(self, model: Any, model_config: Any) -> None:
            # Quantised parameters may keep the tensors they get.
            self._shared, self._gpu = _on_cpu(model) and model_config.quantization is None, _gpu_of(model)
            super().load_weights(model, model_config)

        def _files_of(self, model_config: Any) -> list[str]:
            where = (model_config.model, None, model_config.revision)
            return self._prepare_weights(*where, fall_back_to_pt=False, allow_patterns_overrides=None)[1]

        def _prepare_weights(
            self,
            model_name_or_path: str,
            subfolder: str | None,
            revision: str | None,
            fall_back_to_pt: Any,
            allow_patterns_overrides: list[str] | None,
        ) -> tuple[str, list[str], bool, str]:
            if allow_patterns_overrides is not None or not _is_folder(model_name_or_path):
                where = (model_name_or_path, subfolder, revision)
                prepared = super()._prepare_weights(*where, fall_back_to_pt, allow_patterns_overrides)
                return prepared[0], sorted(prepared[1], key=_natural), prepared[2], prepared[3]
            folder = inside(path_of(model_name_or_path) or "", subfolder or "")
            files, index = model_files(folder)
            return folder, files, True, index

        def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, Any]]:
            folder, files, _, index = self._prepare_weights(
                source.model_or_path,
                source.subfolder,
                source.revision,
                source.fall_back_to_pt,
                source.allow_patterns_overrides,
            )
            if self._encoder_only_lm_prefixes is not None:
                files = weight_utils.filter_mm_encoder_only_safetensors_files(
                    files,
                    folder,
                    index,
                    self._encoder_only_lm_prefixes,
                    weights_mapper=self._encoder_only_weights_mapper,
                )
            over: list[str] = []
            if self._settings.deltas is not None:
                # One handle has all files, so a filter of files saves no reading. The model leaves out unused tensors.
                files, over = under_deltas(folder, self._settings.deltas)
            elif source.is_unused_weight is not None:
                files = _files_used(files, source.is_unused_weight)
            if self.counter_before_loading_weights == 0.0:
                self.counter_before_loading_weights = time.perf_counter()
            every = tensors(
                files,
                self._settings,
                shared=self._shared,
                skip=lambda name: ep_weight_filter.should_skip_weight(name, self.local_expert_ids),
                local=_local_ranks(),
                device=self._gpu,
                deltas=over,
                exchange=_tensor_parallel() if self._settings.exchange and self._gpu is not None else None,
            )
            return ((source.prefix + name, tensor) for name, tensor in every)

    return WeightmapModelLoader


def _local_ranks() -> tuple[int, int]:
    """Return the number of this vLLM process on its machine, and their count; (0, 1) if unknown."""
    from vllm.distributed import parallel_state

    try:
        group, nodes = parallel_state.get_world_group(), parallel_state.get_node_count()
    except AssertionError:  # outside of a worker
        return 0, 1
    local: tuple[int, int] = group.local_rank, group.world_size // nodes
    return local if 0 <= local[0] < local[1] else (0, 1)


def _tensor_parallel() -> Exchange | None:
    """Return the vLLM ranks that hold parts of the same layers, including this one; None if it is alone."""
    from vllm.distributed import parallel_state

    try:
        group = parallel_state.get_tp_group()
    except AssertionError:  # outside of a worker
        return None
    return TorchExchange(group.device_group, group.cpu_group) if group.world_size > 1 else None


# ----------------------------------------------------------------------------------------------------------- SGLang


@functools.cache
def register_sglang() -> None:
    """Make SGLang use this loader if ``model_loader_extra_config`` has the key "weightmap", with the settings."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.model_loader.loader.get_model_loader", choose_sglang_loader, HookType.AROUND)


def choose_sglang_loader(stock: Callable[..., Any], load_config: Any, *args: Any, **named: Any) -> Any:
    """Return this loader if the configuration asks for it, otherwise the result of `stock`."""
    config: Mapping[str, Any] = load_config.model_loader_extra_config or {}
    if "weightmap" not in config:
        return stock(load_config, *args, **named)
    changed = copy.copy(load_config)
    changed.model_loader_extra_config = config["weightmap"]
    return sglang_loader_class()(changed)


@functools.cache
def sglang_loader_class() -> Any:
    """Return the class of SGLang's loader, for its ``load_format``."""
    from sglang.srt.model_loader.loader import DefaultModelLoader

    class WeightmapModelLoader(DefaultModelLoader):  # type: ignore[misc]
        """Loads models by weightmap; see `ExtraConfig.of` for ``model_loader_extra_config``."""

        counter_before_loading_weights: float = 0.0

        def __init__(self, load_config: Any) -> None:
            self._settings, stock = _stock_config(load_config)
            stock.model_loader_extra_config = {}
            super().__init__(stock)

        def _prepare_weights(self, model_name_or_path: str, *_: Any, **__: Any) -> tuple[str, list[str], bool]:
            if not _is_folder(model_name_or_path):
                expected = "a directory or an address; download the model first"
                raise NotRegularFileError("model", actual=quoted(model_name_or_path), expected=expected)
            # False: the stock loader neither adds files nor reads them ahead.
            return model_name_or_path, model_files(model_name_or_path)[0], False

        def _get_weights_iterator(self, source: Any, **resolved: Any) -> Iterator[tuple[str, Any]]:
            chosen = resolved.get("resolved_source")
            files = self._prepare_weights(source.model_or_path)[1] if chosen is None else chosen.weight_files
            over: list[str] = []
            if self._settings.deltas is not None:
                files, over = under_deltas(os.path.dirname(files[0]), self._settings.deltas)
            every = tensors(files, self._settings, shared=False, deltas=over)
            layer = self.load_config.draft_model_idx
            if layer is not None:
                return self._filter_mtp_weights(every, source.prefix, layer)  # type: ignore[no-any-return]
            if self.counter_before_loading_weights == 0.0:
                self.counter_before_loading_weights = time.perf_counter()
            return ((source.prefix + name, tensor) for name, tensor in every)

    return WeightmapModelLoader
