"""Word embeddings of other programs: word2vec, GloVe and fastText files.

`weightmap.convert` reads and writes them; `convert` of this module adds the options for words.

========== ===========================================================================================
name       the file
========== ===========================================================================================
word2vec   a line ``rows dims``, then for each word ``word, space, dims x f32``, with or without a line
           feed behind it; little-endian
textdims   a line ``rows dims``, then a line for each word: the word and `dims` numbers, with white space
           between (word2vec's text output, fastText's ``.vec``)
text       textdims without the first line (GloVe)
fasttext   a model of fastText, ``.bin``, version 12, dense
gensim     ``KeyedVectors.save`` of gensim 4, ``.kv``, and its arrays beside it; only read
========== ===========================================================================================

The names are finalfusion's. `weightmap.open` recognises these files but does not read them: no such file has an index
of its words, text has no numbers to map, and fastText combines several rows for a word. Convert the file once, and open
the result in microseconds.

Conversion
----------
* To finalfusion, rows of words are divided by their L2 norms, which become the tensor "norms"; ``normalize=False``
  keeps the rows and writes no norms. A row of zeros stays zero, with norm 0. Rows of n-grams, and all rows for other
  targets, stay unchanged.
* A fastText model becomes a vocabulary of kind "fasttext", or a simple one if it has no n-grams. Its training options
  become metadata; without the package tomli_w, a warning says that they are lost. The row of each word becomes the mean
  of its own row and the rows of its n-grams. This includes ``</s>``, as in finalfusion; fastText returns its bare row.
* From finalfusion to other formats, rows are multiplied by their norms, unless ``normalize=True``, and means for
  fastText are undone. Only fastText's format has a place for n-grams: others lose their rows, with a warning.
* ``subwords="explicit"`` turns a bucket or fastText vocabulary into an explicit one, which lists the n-grams of its
  words, up to ``Limits.max_header_bytes``.
* ``pq=Pq(...)`` stores the rows by product quantisation.

Errors
------
These raise an error, which names the word or line, and the byte:

* bytes that are not UTF-8, and repeated words; ``lossy=True`` replaces such bytes and keeps the first row of each word,
  also of words that the replacement makes equal;
* a number of words that differs from the declared number; ``strict=False`` takes the words that are there;
* numbers that are malformed, NaN or infinite, and rows of another length.

Counts are compared with the size of the file before memory is allocated. Words of a text file may contain spaces, like
some of GloVe's, unless a number follows the first space.
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
