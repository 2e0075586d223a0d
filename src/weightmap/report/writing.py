"""`write_report`: examines one model or two, and writes the page."""

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
    """Write a page about a model, or about the differences between two models.

    The page is a single HTML file with tables, charts and the library that draws them. It fetches nothing, and shows
    all its tables without JavaScript. Memory stays flat: pread reads a sample of at most 65,536 elements per tensor.
    Two models are compared element by element.

    Parameters
    ----------
    out : path
        The file of the page, replaced in one step.
    a, b : TensorFile or anything that `weightmap.open` takes
        With `b`, the page compares both. For ``f.weights``, it shows or compares parameters, and the map of the file
        has the stored tensors. A handle stays open.
    verify : bool
        Read and check the whole file like `TensorFile.verify`; has no effect on two models.
    progress : callable, optional
        ``progress(done, total)``, in bytes.

    Returns
    -------
    bool
        False when verification failed; the page says why.

    Raises
    ------
    TargetError
        When `out` is a file of a model in the report.
    MissingDependencyError
        When vl-convert-python, of the extra ``[report]``, is not installed.
    """
    return write_page(out, a, b, verify=verify, progress=progress) is None


def write_page(
    out: Any, a: Model, b: Model | None, *, verify: bool, progress: Callable[[int, int], None] | None
) -> str | None:
    """Write a page like `write_report`; return the reason why verification failed, or None."""
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
    """Return the name of a model on a page; a directory has its own path, not its index's."""
    return folder_opened(file) or name_of(file)
