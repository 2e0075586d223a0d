"""Counts names that say too little, in src/ and csrc/: `make lint` fails when there are more than RECORDED.

It counts the places where Python binds a name (of a variable, function, class, parameter or attribute), and the
identifiers of C outside comments and strings. Capitals, and underscores around a name, make no difference.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# It may only fall.
RECORDED = 11
WORDS = re.compile(
    "found|made|given|own|wanted|told|beside|along|apart|known|left|most|least|soon|alike|dear|near|few|rest|kept|taken"
    "|seen|asked|held|whose|spare|upto|outwards|beyond|seconds"
)
# Comments and strings of C, or an identifier, which is the group.
C_TOKENS = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\b([A-Za-z_]\w*)""", re.DOTALL)


def bound(node: ast.AST) -> str | None:
    """Return the name that a node of Python binds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.alias(asname=name) | ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return name
    return None


def names() -> Iterator[str | None]:
    """Yield the names that are bound in src, and the identifiers in csrc."""
    for path in (ROOT / "src").rglob("*.py*"):
        if path.suffix in {".py", ".pyi"}:
            yield from map(bound, ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    for path in (ROOT / "csrc").rglob("*.[ch]"):
        yield from (match[1] for match in C_TOKENS.finditer(path.read_text(encoding="utf-8")))


def main() -> int:
    """Return 1 if there are more such names than recorded; print them word by word if their number differs."""
    words = (name.strip("_").lower() for name in names() if name)
    counts = Counter(word for word in words if WORDS.fullmatch(word))
    total = counts.total()
    if total != RECORDED:
        print(*(f"{word} {count}" for word, count in counts.most_common()), sep=", ")
        advice = "say what they hold" if total > RECORDED else "lower the recorded number"
        print(f"{total} names say too little; packaging/names.py records {RECORDED}: {advice}")
    return total > RECORDED


if __name__ == "__main__":
    sys.exit(main())
