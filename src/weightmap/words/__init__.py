"""Word embeddings of other programs: word2vec, GloVe and fastText files.

`weightmap.convert` reads and writes them; `convert` of this module adds the options for words.

========== ===========================================================================================
name       the file
========== ===========================================================================================
word2vec   a line ``rows dims``, then for each word ``word, space, dims x f32``, with or without a line
           feed behind it; little-endian
textdims   a line ``rows dims``, then a line for each word: the word and `dims` numbers, with white space
           between (word2vec's text output, fastText's ``.vec``)
text       the same without the first line (GloVe)
fasttext   a model of fastText, ``.bin``, version 12, dense
gensim     ``KeyedVectors.save`` of gensim 4, ``.kv``, and its arrays beside it; only read
========== ===========================================================================================

The names are finalfusion's. `weightmap.open` recognises these files but does not read them: none has an index of its
words, text has no numbers to map, and fastText combines several rows for a word. Convert once, and open the result in
microseconds.

Conversion
----------
* To finalfusion, rows of words are divided by their L2 norms, which become the tensor "norms"; ``normalize=False``
  keeps the rows, without norms. A row of zeros stays one, with norm 0. Rows of n-grams stay as they are, and so do all
  rows for other targets.
* A fastText model becomes a vocabulary of kind "fasttext", or a simple one if it has no n-grams. Its training options
  become metadata (left behind, with a warning, without the package tomli_w). The row of each word becomes the mean of
  its own row and those of its n-grams; of ``</s>`` too, as in finalfusion, where fastText itself returns the bare row.
* On the way back, rows are multiplied by their norms, unless ``normalize=True``, and means for fastText are undone.
  Formats other than fastText's have no place for n-grams: their rows are left behind, with a warning.
* ``subwords="explicit"`` lists the n-grams of the words of a bucket or fastText vocabulary in an explicit one, up to
  ``Limits.max_header_bytes``.
* ``pq=Pq(...)`` stores the rows by product quantisation.

Errors
------
Bytes that are not UTF-8 and repeated words, unless ``lossy=True`` replaces such bytes and keeps the first row of each
word, also of words that the replacement makes equal; another number of words than declared, unless ``strict=False``
takes the words that are there; numbers that are malformed, NaN or infinite; rows of another length. The error names
word or line, and the byte. Counts are compared with the size of the file before they allocate anything. Words of a text
file may contain spaces, as some of GloVe's do, unless a number follows the first space.
"""

from typing import TYPE_CHECKING

from weightmap.core.hooks import on_demand

if TYPE_CHECKING:
    from weightmap.words.converting import convert
    from weightmap.words.importers import NAMES
    from weightmap.words.training import Pq, train_pq

__all__ = ["NAMES", "Pq", "convert", "train_pq"]

# Imported at first use: `weightmap.open` needs only the importers, to recognise a file.
_ON_DEMAND = {"NAMES": "importers", "Pq": "training", "convert": "converting", "train_pq": "training"}
__getattr__, __dir__ = on_demand(__name__, globals(), _ON_DEMAND)
