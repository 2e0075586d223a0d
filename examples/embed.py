"""Rank sentences by their similarity to the first: ``python examples/embed.py minilm.weights QUERY SENTENCE...``.

``weightmap convert <model directory> minilm.weights`` makes the file.
"""

import sys

import weightmap
from minilm import SentenceEncoder

if len(sys.argv) < 4:
    sys.exit(__doc__)
path, query, *sentences = sys.argv[1:]
with weightmap.open(path) as file:
    embeddings = SentenceEncoder(file).embed([query, *sentences])

similarity = embeddings[1:] @ embeddings[0]
for i in similarity.argsort()[::-1]:
    print(f"{similarity[i]:6.3f}  {sentences[i]}")
