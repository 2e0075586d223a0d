"""The rows of the threat tables, with the proof of each: ``python -m tests.attacks.table`` prints them.

Files that `tests.attacks` makes and `test_attacks.py` tries prove a row, or tests that it names, or both.
"""

from . import TESTS, cases, parts

__all__ = ["between", "lines", "put_between"]


def lines():
    files = {case.row for case in cases()}
    for title, rows in parts().items():
        yield from ("", f"**{title}**", "", "| | attack: outcome | shown by |", "|---|---|---|")
        for row, sentence in rows.items():
            shown = ["files"] if row in files else []
            shown += [f"`{name}`" for name in TESTS.get(row, ())]
            yield f"| {row} | {sentence} | {', '.join(shown)} |"


def _marks(name):
    return f"<!-- made by {name} -->", f"<!-- end of {name} -->"


def between(document, name):
    begin, end = _marks(name)
    return document.partition(begin)[2].partition(end)[0].strip("\n")


def put_between(path, name, text):
    begin, end = _marks(name)
    document = path.read_text(encoding="utf-8")
    if begin not in document or end not in document:
        msg = f"{path} has no marks {begin} and {end}"
        raise ValueError(msg)
    before, _, rest = document.partition(begin)
    body = "\n".join(text).strip("\n")
    path.write_text(f"{before}{begin}\n\n{body}\n\n{end}{rest.partition(end)[2]}", encoding="utf-8")


if __name__ == "__main__":
    print("\n".join(lines()).strip("\n"))  # noqa: T201 - a command
