"""From sentences to embeddings: a WordPiece tokeniser built on a mapped vocabulary, and the encoder behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightmap.demo.bert import BertEncoder
from weightmap.demo.parts import model_parts
from weightmap.errors import MissingDependencyError, TensorFileError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from tokenizers import Tokenizer

__all__ = ["SentenceEncoder", "build_tokenizer"]

# Words of more letters than this are unknown as a whole, as in the original BERT tokeniser.
_MAX_LETTERS = 100


def build_tokenizer(vocab: Sequence[str], special_ids: Mapping[str, int], *, max_length: int) -> Tokenizer:
    """Build BERT's uncased WordPiece tokeniser on a vocabulary.

    Text is cleaned, lower-cased and stripped of accents, split at white space and punctuation, each word cut into the
    longest pieces that the vocabulary has; [CLS] goes before and [SEP] behind.

    Parameters
    ----------
    vocab : sequence of str
        Tokens by id, such as ``TensorFile.vocab``. The tokenizers library keeps a copy of its own.
    special_ids : mapping of str to int
        Ids of the special tokens under ``pad unk cls sep mask``.
    max_length : int
        Longest sequence in tokens, [CLS] and [SEP] included. What is beyond is cut off, [SEP] stays.

    Returns
    -------
    tokenizers.Tokenizer

    Raises
    ------
    MissingDependencyError
        If the tokenizers library is not installed.

    """
    try:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    except ImportError as error:
        raise MissingDependencyError("the demo needs the tokenizers library: pip install tokenizers") from error

    special = {role: vocab[special_ids[role]] for role in ("pad", "unk", "cls", "sep", "mask")}
    ids = {token: number for number, token in enumerate(vocab)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=special["unk"], max_input_chars_per_word=_MAX_LETTERS))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        (special["sep"], special_ids["sep"]), (special["cls"], special_ids["cls"])
    )
    # A special token spelt out in a text means that token, as it does with the checkpoint's own tokenizer.json.
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.enable_truncation(max_length)
    tokenizer.enable_padding(pad_id=special_ids["pad"], pad_token=special["pad"])
    return tokenizer


class SentenceEncoder:
    """Sentences in, embeddings out.

    Parameters
    ----------
    tensors : mapping of str to ndarray or QuantizedTensor
        A BERT checkpoint's tensors, as :class:`~weightmap.demo.bert.BertEncoder` takes them: an open
        :class:`weightmap.TensorFile`, used in place.
    metadata : mapping of str to str, optional
        EMBD's metadata keys; by default what the file says, in its metadata (EMBD) or its configuration (AMB).
    vocab : sequence of str, optional
        Tokens by id; by default the file's vocabulary (EMBD) or that of its tokenizer (AMB).
    special_ids : mapping of str to int, optional
        Ids under ``pad unk cls sep mask``; by default those that came with the vocabulary.

    Raises
    ------
    UnsupportedError
        If this is not a BERT checkpoint with its configuration and vocabulary.
    MissingDependencyError
        If the tokenizers library is not installed.

    Examples
    --------
    >>> import weightmap
    >>> with weightmap.open("minilm.weights") as file:  # doctest: +SKIP
    ...     SentenceEncoder(file).embed(["A cat sleeps.", "A kitten naps."]).shape
    (2, 384)

    """

    def __init__(
        self,
        tensors: Mapping[str, Any],
        metadata: Mapping[str, str] | None = None,
        vocab: Sequence[str] | None = None,
        special_ids: Mapping[str, int] | None = None,
    ) -> None:
        path = getattr(tensors, "path", None)
        if metadata is None or vocab is None:
            found = model_parts(tensors)
            metadata = found.metadata if metadata is None else metadata
            if vocab is None:
                vocab, special_ids = found.vocab, found.special_ids if special_ids is None else special_ids
        special_ids = getattr(vocab, "special_ids", None) if special_ids is None else special_ids
        if not vocab or not special_ids:
            raise UnsupportedError("the demo needs a vocabulary with special ids; this model has none", path=path)
        try:
            self._encoder = BertEncoder(tensors, metadata)
            if len(vocab) > self._encoder.vocab_size:
                raise ValueError(f"{len(vocab)} tokens, but only {self._encoder.vocab_size} word embeddings")  # noqa: TRY301
            self._tokenizer = build_tokenizer(vocab, special_ids, max_length=self._encoder.max_positions)
        except TensorFileError:
            raise
        except (LookupError, ValueError) as error:
            raise UnsupportedError(f"this is no BERT model that the demo can run: {error}", path=path) from error

    @property
    def dims(self) -> int:
        """Width of an embedding."""
        return self._encoder.dims

    def tokenize(self, sentences: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Token ids of sentences, all padded to the length of the longest.

        Parameters
        ----------
        sentences : sequence of str
            Any text, also empty. Lone surrogates count as question marks.

        Returns
        -------
        ids : ndarray of int64, shape (n, t)
        mask : ndarray of uint8, shape (n, t)
            1 for a token, 0 for padding.

        """
        # Half a surrogate pair cannot be passed to the library, and an argument that was no UTF-8 contains some.
        clean = [sentence.encode("utf-8", "replace").decode("utf-8") for sentence in sentences]
        encoded = self._tokenizer.encode_batch(clean)
        shape = (len(encoded), -1 if encoded else 0)
        ids = np.array([one.ids for one in encoded], dtype=np.int64).reshape(shape)
        mask = np.array([one.attention_mask for one in encoded], dtype=np.uint8).reshape(shape)
        return ids, mask

    def embed(self, sentences: Sequence[str], *, batch_size: int = 32) -> NDArray[np.float32]:
        """Embeddings of sentences: the cosine similarity of two is their dot product.

        Parameters
        ----------
        sentences : sequence of str
            A sentence longer than the model's positions (512 tokens for MiniLM) is cut off there.
        batch_size : int, optional
            So many sentences at a time go through the layers, which bounds the memory that is needed.

        Returns
        -------
        ndarray of float32, shape (n, d)
            Rows of length 1, in the order of the sentences.

        """
        result = np.empty((len(sentences), self.dims), dtype=np.float32)
        for start in range(0, len(sentences), batch_size):
            ids, mask = self.tokenize(sentences[start : start + batch_size])
            result[start : start + len(ids)] = self._encoder.encode(ids, mask)
        return result
