"""Files that are read once, to be converted: word2vec, GloVe, fastText, Hugging Face directories."""

__all__ = ["NAMES"]

# The formats of words, by the names that `convert` takes.
NAMES = ("word2vec", "text", "textdims", "fasttext")
