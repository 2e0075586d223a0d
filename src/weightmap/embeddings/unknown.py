"""The error for a word without a vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightmap.errors import TensorFileError, counted, escape, quoted

if TYPE_CHECKING:
    from weightmap.embeddings.vocabulary import Vocabulary

__all__ = ["UnknownWordError", "no_vector"]


class UnknownWordError(KeyError):
    """A KeyError whose text names the file and similar words.

    The text is made when it is asked for: a program that catches the error of each unknown word does not wait for it.

    Parameters
    ----------
    word : object
        The word, also ``args[0]``.
    vocab : Vocabulary
    """

    def __init__(self, word: object, vocab: Vocabulary) -> None:
        super().__init__(word)
        self._vocab = vocab

    def __str__(self) -> str:
        return no_vector(self.args[0], self._vocab)

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyError, (str(self),)


def no_vector(word: object, vocab: Vocabulary, *, suggest: bool = True) -> str:
    """Return the message for a word without a vector; `suggest` similar words, which takes some milliseconds."""
    text = f"there is no vector for {quoted(word)} among those of {counted(len(vocab), 'word')}"
    if not isinstance(word, str):
        text += "; words are strings (str)"
    else:
        text += "" if vocab.subwords is None else ", and none of its n-grams is known"
        close = _similar(word, vocab) if suggest else []
        text += f"; similar words: {', '.join(map(quoted, close))}" if close else ""
    return escape(text if vocab.path is None else f"{vocab.path}: {text}")


def _similar(word: str, vocab: Vocabulary) -> list[str]:
    from weightmap.index.spelling import alike  # noqa: PLC0415 - for errors only

    try:
        return alike(word, vocab)
    except TensorFileError:  # words that cannot be decoded, or a file that was changed
        return []
