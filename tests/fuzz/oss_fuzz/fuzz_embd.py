"""Fuzzes the reader of "embd": see tests/fuzz/guided.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.fuzz.guided import main

if __name__ == "__main__":
    main("embd")
