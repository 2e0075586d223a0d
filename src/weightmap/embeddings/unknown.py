"""The error for a word without a vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightmap.arguments import similar
from weightmap.errors import TensorFileError, UnknownWordError, counted, quoted

if TYPE_CHECKING:
    from weightmap.embeddings.vocabulary import Vocabulary


def no_vector(word: object, vocab: Vocabulary, *, suggest: bool = True) -> UnknownWordError:
    """Return the error for a word without a vector; `suggest` similar words, which takes some milliseconds.

    Its text is made at its first use: a program that catches the errors of many unknown words does not wait for it.
    """
    error = UnknownWordError(_Miss(word, vocab, suggest), path=vocab.path)
    error.word = word
    error.args = (word,)  # as other mappings do
    return error


class _Miss(NamedTuple):
    """The text about a word."""

    word: object
    vocab: Vocabulary
    suggest: bool

    def __str__(self) -> str:
        word, vocab, suggest = self
        text = f"there is no vector for {quoted(word)} among those of {counted(len(vocab), 'word')}"
        if not isinstance(word, str):
            return f"{text}; words are strings (str)"
        text += "" if vocab.subwords is None else ", and none of its n-grams is known"
        close = _similar(word, vocab) if suggest else []
        return text + (f"; similar words: {', '.join(map(quoted, close))}" if close else "")


def _similar(word: str, vocab: Vocabulary) -> list[str]:
    try:
        return similar(word, vocab)
    except TensorFileError:  # words that cannot be decoded, or a file that was changed
        return []
