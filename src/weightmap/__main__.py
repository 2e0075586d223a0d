"""``python -m weightmap``: the command line."""

import sys

from weightmap.cli import main

if __name__ == "__main__":
    sys.exit(main())
