"""Word vectors beside gensim: opening, a few words, the most similar words."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from workflows.common import need, normal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N, WIDTH = 200_000, 300
WORDS = [f"word{i}" for i in range(0, N, N // 50)]


def write(folder: Path, mib: int) -> None:
    """Write word2vec's binary format."""
    vectors = normal((N, WIDTH))
    with (folder / "vectors.bin").open("wb") as file:
        file.write(f"{N} {WIDTH}\n".encode())
        for i in range(N):
            file.write(f"word{i} ".encode() + vectors[i].tobytes() + b"\n")
    try:
        keyed = need("gensim.models").KeyedVectors.load_word2vec_format(folder / "vectors.bin", binary=True)
    except Exception:  # noqa: BLE001 - gensim is not here
        return
    keyed.save(str(folder / "vectors.kv"))


def ours(what: str, folder: Path) -> Callable[[], Any]:
    """Return ours, on a mapped file."""
    wm = need("weightmap")
    target = folder / "vectors.fifu"
    if not target.exists():
        wm.convert(folder / "vectors.bin", target)
    if what == "open":
        return lambda: wm.open(target).embeddings.batch(WORDS)
    vectors = wm.open(target).embeddings
    vectors.most_similar("word7")
    return lambda: [vectors.most_similar(word) for word in WORDS[:10]]


def gensim(what: str, folder: Path) -> Callable[[], Any]:
    """Return gensim's, on its own mapped file."""
    keyed = need("gensim.models").KeyedVectors
    load = partial(keyed.load, str(folder / "vectors.kv"), mmap="r")
    if what == "open":
        return lambda: load()[WORDS]
    vectors = load()
    vectors.most_similar("word7")
    return lambda: [vectors.most_similar(word) for word in WORDS[:10]]


WORKFLOWS = {
    question: {"weightmap": partial(ours, what), "gensim": partial(gensim, what)}
    for question, what in {"open, 50 of 200,000 words": "open", "most_similar, ten times": "similar"}.items()
}
