"""`write_report`: looks at one model or two, and writes the page."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from weightmap.checkpoints.weights import as_parameters
from weightmap.core.bytes.atomic import write_plan
from weightmap.core.bytes.sink import WritePlan
from weightmap.core.model.file import TensorFile
from weightmap.core.model.inputs import check_not_read
from weightmap.core.model.internals import name_of
from weightmap.core.model.opening import open_privately
from weightmap.report.comparing import comparison
from weightmap.report.model import model_page
from weightmap.report.pair import pair_page
from weightmap.report.survey import survey

if TYPE_CHECKING:
    from collections.abc import Callable


def write_report(
    out: Any,
    a: Any,
    b: Any = None,
    *,
    verify: bool = True,
    weights: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> bool:
    """Write a page about a model, or about how two models differ.

    The page is one file of HTML with tables, charts and the library that draws them. It fetches nothing, and without
    JavaScript it has all its tables. Memory stays flat: elements are read by pread, of each tensor a sample of at most
    65,536. Two models are compared element by element.

    Parameters
    ----------
    out : path
        The page; replaced in one step.
    a, b : TensorFile or anything that `weightmap.open` takes
        With `b`, the page compares both.
    verify : bool
        Read the whole file and check it, as `TensorFile.verify` does; not for two models.
    weights : bool
        Show or compare parameters, as in `TensorFile.weights`, not stored tensors; the map of the file has the latter.
    progress : callable, optional
        ``progress(done, total)``, in bytes.

    Returns
    -------
    bool
        False when verification failed; the page says why.

    Raises
    ------
    TargetError
        When `out` is a file of a reported model.
    MissingDependencyError
        Without the package vl-convert-python, in the extra ``[report]``.
    """
    return write_page(out, a, b, verify=verify, weights=weights, progress=progress) is None


def write_page(
    out: Any, a: Any, b: Any, *, verify: bool, weights: bool = False, progress: Callable[[int, int], None] | None
) -> str | None:
    """Write a page as `write_report` does; return why verification failed, or None."""
    target = os.fsdecode(os.fspath(out))
    with contextlib.ExitStack() as stack:
        sources = (a,) if b is None else (a, b)
        files = [
            source if isinstance(source, TensorFile) else stack.enter_context(open_privately(source))
            for source in sources
        ]
        for file in files:
            check_not_read(file, target)
        names = [_name(source, file) for source, file in zip(sources, files, strict=True)]
        damage = None
        if b is None:
            surveyed = survey(files[0], verify=verify, weights=weights, progress=progress)
            damage = surveyed.damage
            page = model_page(names[0], surveyed)
        else:
            files = [as_parameters(file) for file in files] if weights else files
            page = pair_page(names, [file.nbytes for file in files], comparison(files[0], files[1], progress))
    write_plan(target, WritePlan(len(page), lambda sink: sink.write(page)))
    return damage


def _name(source: Any, file: TensorFile) -> str:
    """Return what a page calls a model: a directory by its own path, not by that of its index."""
    if isinstance(source, str | os.PathLike) and os.path.isdir(source):
        return os.fsdecode(os.fspath(source))
    return name_of(file)
