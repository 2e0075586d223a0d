"""Word embeddings of other programs: word2vec, GloVe and fastText files, read and written by `weightmap.convert`.

========== ===========================================================================================
name       the file
========== ===========================================================================================
word2vec   a line ``rows dims``, then for each word ``word, space, dims x f32``, with or without a line
           feed behind it; little-endian
textdims   a line ``rows dims``, then a line for each word: the word and `dims` numbers, with white space
           between (word2vec's text output, fastText's ``.vec``)
text       the same without the first line (GloVe)
fasttext   a model of fastText, ``.bin``, version 12, dense
========== ===========================================================================================

The names are finalfusion's. These are formats of `weightmap.convert` and not of `weightmap.open`: none of them says
where its word 1,000 begins, text has no numbers that could be mapped, and the rows of fastText's words are not those
that fastText answers with. Whoever wants to look words up converts once, and opens the result in microseconds.

What they become
----------------
* By default, as finalfusion has it, the rows of words are divided by their L2 norms, which become the tensor "norms";
  ``normalize=False`` keeps the rows as they are, and no norms. Rows of n-grams stay as they are. A row of zeros stays
  one, with norm 0. For a target other than finalfusion the default is to keep the rows.
* A fastText model becomes a vocabulary of kind "fasttext", its training options become metadata (they are left behind,
  with a warning, where the package tomli_w is missing), and the row of each word becomes the mean of its own row and
  those of its n-grams (all of them, those of ``</s>`` too, as in finalfusion; fastText itself answers for ``</s>``
  alone with the bare row). A model without n-grams becomes a simple vocabulary.
* Going back, rows are multiplied by their norms, unless ``normalize=True``; of fastText's rows the mean is undone.
  Formats other than fastText's have no place for n-grams: their rows are left behind, with a warning.
* ``subwords="explicit"`` lists the n-grams of the words of a bucket or fastText vocabulary in an explicit one, where
  they take no more bytes than ``Limits.max_header_bytes``.
* ``quantize="pq"`` stores the rows by product quantisation: see `train_pq`.

What is refused
---------------
Bytes that are not UTF-8, unless ``lossy=True`` replaces them; words that are there twice, also when that replacement
made them so; numbers that are none, NaN or infinite; rows of another length; other counts than declared. The error
names word or line, and the byte. Counts are held against the size of the file before anything is allocated by them.
A word of a text file may contain spaces (some of GloVe's do) as long as what follows the first is no number.
"""

from weightmap.conversion.training import train_pq
from weightmap.importers import NAMES

__all__ = ["NAMES", "train_pq"]
