"""`write_report`: looks at one model or two, and writes the page."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from weightmap.core.arguments import names_moved
from weightmap.core.bytes.atomic import write_plan
from weightmap.core.bytes.sink import WritePlan
from weightmap.core.model.internals import folder_opened, name_of
from weightmap.core.model.opening import Model, as_handle
from weightmap.huggingface.companion_files import check_not_read
from weightmap.report.comparing import comparison, pair_page
from weightmap.report.model import model_page
from weightmap.report.survey import survey

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightmap.core.model.file import TensorFile


@names_moved
def write_report(
    out: str | os.PathLike[str],
    a: Model,
    b: Model | None = None,
    *,
    verify: bool = True,
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
        With `b`, the page compares both. Of ``f.weights`` it shows or compares parameters; the map of the file has the
        stored tensors. A handle stays open.
    verify : bool
        Read the whole file and check it, as `TensorFile.verify` does; not for two models.
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
    return write_page(out, a, b, verify=verify, progress=progress) is None


def write_page(
    out: Any, a: Model, b: Model | None, *, verify: bool, progress: Callable[[int, int], None] | None
) -> str | None:
    """Write a page as `write_report` does; return why verification failed, or None."""
    target = os.fsdecode(os.fspath(out))
    with contextlib.ExitStack() as stack:
        sources = (a,) if b is None else (a, b)
        files = [stack.enter_context(as_handle(source)) for source in sources]
        for file in files:
            check_not_read(file, target)
        names = [_name(file) for file in files]
        damage = None
        if b is None:
            surveyed = survey(files[0], verify=verify, progress=progress)
            damage = surveyed.damage
            page = model_page(names[0], surveyed)
        else:
            page = pair_page(names, [file.nbytes for file in files], comparison(files[0], files[1], progress))
    write_plan(target, WritePlan(len(page), lambda sink: sink.write(page)))
    return damage


def _name(file: TensorFile) -> str:
    """Return what a page calls a model: a directory by its own path, not its index's."""
    return folder_opened(file) or name_of(file)
