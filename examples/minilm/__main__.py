"""``python -m minilm [--model FILE] [SENTENCE ...]``: embed sentences, straight from the mapped file."""

import argparse
import sys

from minilm import run
from weightmap.errors import TensorFileError

parser = argparse.ArgumentParser(
    prog="minilm", description="Embed sentences with a model, straight from the mapped file."
)
parser.add_argument("sentences", metavar="SENTENCE", nargs="*")
parser.add_argument(
    "--model", metavar="FILE", help="a converted checkpoint, quantised or not; made if it does not exist"
)
args = parser.parse_args()
try:
    sys.exit(run(args.model, args.sentences))
except (TensorFileError, OSError) as error:
    sys.exit(f"minilm: {error}")
