"""Prints the lines of code of each room of src/weightmap; `make lint` fails when one exceeds its budget.

Lines of code are those with code: no docstrings, comments, or blank lines. A budget is lowered as its room shrinks, and
raised only by a commit of its own that says why.
"""

import ast
import sys
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "weightmap"
# The core, and the formats in it; then each part. Other modules at the top, such as `errors`, have none.
BUDGETS = {
    "core": 15_000,
    "core/formats": 6_600,
    "checkpoints": 2_763,
    "cli": 1_890,
    "compat": 1_484,
    "conversion": 2_704,
    "dcp": 296,
    "deltas": 2_124,
    "device": 1_172,
    "dlpack": 80,
    "hub": 183,
    "huggingface": 492,
    "jax": 80,
    "llama": 1_282,
    "onnxruntime": 50,
    "plans": 2_113,
    "pool": 744,
    "remote": 1_852,
    "report": 1_317,
    "torch": 965,
    "trust": 619,
    "vllm": 332,
    "words": 2_095,
}


def code_lines(path: Path) -> int:
    """Return how many lines of a module have code."""
    text = path.read_text(encoding="utf-8")
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=last), *_]:
                    prose.update(range(first, (last or first) + 1))
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in prose for number, line in lines)


def main() -> int:
    """Return 1 if a room has more lines than its budget, or none."""
    counts: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        room, *inner = path.relative_to(PACKAGE).with_suffix("").parts
        counts[room] += code_lines(path)
        if inner[:1] == ["formats"]:
            counts[f"{room}/formats"] += code_lines(path)
    print(", ".join(f"{room} {counts[room]:,} of {budget:,}" for room, budget in BUDGETS.items()))
    homeless = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} - BUDGETS.keys()
    for room in sorted(homeless):
        print(f"{room} has no budget: packaging/rooms.py")
    excess = {room: counts[room] - budget for room, budget in BUDGETS.items() if counts[room] > budget}
    for room, lines in excess.items():
        print(f"{room} is {lines} lines of code over its budget of {BUDGETS[room]:,}: packaging/rooms.py")
    return bool(homeless or excess)


if __name__ == "__main__":
    sys.exit(main())
