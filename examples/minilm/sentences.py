"""From sentences to embeddings: a WordPiece tokeniser on a mapped vocabulary, and the encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from minilm.bert import BertEncoder
from minilm.model_parts import model_parts
from weightmap.errors import MissingDependencyError, TensorFileError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from tokenizers import Tokenizer

# The library that cuts sentences up, and how to get it.
TOKENIZERS = "the tokenizers library: pip install tokenizers"

# A word of more letters is unknown as a whole, as in the original BERT tokeniser.
_MAX_LETTERS = 100


def build_tokenizer(vocab: Sequence[str], special_ids: Mapping[str, int], *, max_length: int) -> Tokenizer:
    """Build BERT's uncased WordPiece tokeniser on a vocabulary.

    It cleans text, lower-cases it, strips accents, splits at white space and punctuation, and cuts each word into the
    longest pieces in the vocabulary, between [CLS] and [SEP].

    Parameters
    ----------
    vocab : sequence of str
        Tokens by id, such as ``TensorFile.vocab``. The tokenizers library keeps a copy.
    special_ids : mapping of str to int
        Ids of the special tokens under ``pad unk cls sep mask``.
    max_length : int
        Longest sequence in tokens, including [CLS] and [SEP], which stay when a longer one is cut off.

    Returns
    -------
    tokenizers.Tokenizer

    Raises
    ------
    MissingDependencyError
        When the tokenizers library is not installed.
    """
    try:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    except ImportError as error:
        raise MissingDependencyError(f"the demo needs {TOKENIZERS}") from error

    special = {role: vocab[special_ids[role]] for role in ("pad", "unk", "cls", "sep", "mask")}
    ids = {token: number for number, token in enumerate(vocab)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=special["unk"], max_input_chars_per_word=_MAX_LETTERS))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        (special["sep"], special_ids["sep"]), (special["cls"], special_ids["cls"])
    )
    # A special token spelt out in a text means that token, as with the checkpoint's own tokenizer.json.
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.enable_truncation(max_length)
    tokenizer.enable_padding(pad_id=special_ids["pad"], pad_token=special["pad"])
    return tokenizer


class SentenceEncoder:
    """Turns sentences into embeddings.

    Parameters
    ----------
    tensors : mapping of str to ndarray or QuantizedTensor
        A BERT checkpoint's tensors, as :class:`~minilm.bert.BertEncoder` takes them, such as an open
        :class:`weightmap.TensorFile`, used in place.
    metadata : mapping of str to str, optional
        Under EMBD's keys; by default from the file's metadata (EMBD) or configuration (AMB).
    vocab : sequence of str, optional
        Tokens by id; by default from the file's vocabulary (EMBD) or tokenizer (AMB).
    special_ids : mapping of str to int, optional
        Ids under ``pad unk cls sep mask``; by default those of the vocabulary.

    Raises
    ------
    UnsupportedError
        When this is no BERT checkpoint with its configuration and vocabulary.
    MissingDependencyError
        When the tokenizers library is not installed.
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
            raise UnsupportedError(f"the demo cannot run this model: {error}", path=path) from error

    @property
    def dims(self) -> int:
        """Width of an embedding."""
        return self._encoder.dims

    def tokenize(self, sentences: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return the token ids of sentences, all padded to the length of the longest.

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
        # The library takes no lone surrogates, which an argument beyond UTF-8 contains.
        clean = [sentence.encode("utf-8", "replace").decode("utf-8") for sentence in sentences]
        encoded = self._tokenizer.encode_batch(clean)
        shape = (len(encoded), -1 if encoded else 0)
        ids = np.array([one.ids for one in encoded], dtype=np.int64).reshape(shape)
        mask = np.array([one.attention_mask for one in encoded], dtype=np.uint8).reshape(shape)
        return ids, mask

    def embed(self, sentences: Sequence[str], *, batch_size: int = 32) -> NDArray[np.float32]:
        """Return the embeddings of sentences; the cosine similarity of two is their dot product.

        Parameters
        ----------
        sentences : sequence of str
            Cut off at the model's number of positions (512 tokens for MiniLM).
        batch_size : int, optional
            Sentences that go through the layers together: bounds the memory.

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
