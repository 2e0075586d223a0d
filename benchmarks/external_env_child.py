"""finalfusion-python, timed by itself: see `external_env.py`. Runs without weightmap, in the environment of the rival.

    python external_env_child.py QUESTION FILE WORDS

WORDS is a text file of the words to look up, one a line. Each line of standard input is a number of calls; the answer
is the number of seconds they took.
"""

import sys
import time

import finalfusion
import numpy as np


def stacked(embeddings, words):
    """Look words up one after another: the library has no other way."""
    return np.stack([embeddings[word] for word in words])


def question(name, path, words):
    """Return (setup, call): `setup` runs before each call, and the call is timed."""

    def load():
        return finalfusion.load_finalfusion(path, mmap=True)

    if name == "open":
        return (lambda: None), (lambda _: load())
    if name == "open and first":
        return (lambda: None), (lambda _: load()[words[0]])
    if name == "first":
        return load, (lambda embeddings: embeddings[words[0]])
    embeddings = load()
    calls = {
        "known": lambda _: embeddings[words[0]],
        "many": lambda _: stacked(embeddings, words),
        "similar": lambda _: embeddings.word_similarity(words[0]),
    }
    calls[name](None)
    return (lambda: None), calls[name]


def main():
    """Answer until standard input ends."""
    name, path, words_path = sys.argv[1:]
    with open(words_path, encoding="utf-8") as lines:
        words = lines.read().split("\n")
    setup, call = question(name, path, words)
    for line in sys.stdin:
        total = 0.0
        for _ in range(int(line)):
            given = setup()
            begin = time.perf_counter()
            call(given)
            total += time.perf_counter() - begin
        print(total, flush=True)


main()
