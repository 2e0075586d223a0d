"""Mutants of C: where comparisons are, clang says; each becomes a choice that depends on a variable of the module."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .sites import COMPARISONS, Sites

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SWITCH = """/* Made by fuzz/mutation. */
#ifndef WEIGHTMAP_MUTANTS_H
#define WEIGHTMAP_MUTANTS_H
extern __attribute__((visibility("default"))) int wm_mutant;
extern __attribute__((visibility("default"))) unsigned char wm_reached[];
#define WM_NUMBER(n, site, first) \\
    ((n) + (wm_reached[site] = 1, wm_mutant == (first) ? 1 : wm_mutant == (first) + 1 ? -1 : 0))
#endif
"""


@dataclass
class _Spot:
    """A comparison or a number in the text, with the spots within it."""

    begin: int
    end: int
    kind: str
    left: tuple[int, int] = (0, 0)
    right: tuple[int, int] = (0, 0)
    inner: list[_Spot] = field(default_factory=list)


def _position(place: dict[str, Any]) -> dict[str, Any]:
    """Where it stands in the file, and not where a macro that is used there was defined."""
    found: dict[str, Any] = place.get("expansionLoc", place)
    return found


def _span(node: dict[str, Any], text: bytes) -> tuple[int, int] | None:
    """The bytes that a node takes in this file; None when it stands in another, or ends within a macro's arguments."""
    begin, end = (_position(node["range"][key]) for key in ("begin", "end"))
    if "offset" not in begin or "includedFrom" in begin or "includedFrom" in end:
        return None
    stop = end["offset"] + end["tokLen"]
    if "expansionLoc" in node["range"]["end"] and text[stop : stop + 1] == b"(":
        return None
    return begin["offset"], stop


def _spots(node: dict[str, Any], text: bytes, *, compared: bool) -> Iterator[_Spot]:
    """Every comparison and number below a node of the syntax tree."""
    kind = node.get("kind")
    if kind in {"EnumDecl", "CaseStmt"} and kind == "EnumDecl":
        return
    span = _span(node, text) if "range" in node else None
    inner = [child for child in node.get("inner", ()) if child]
    if kind == "BinaryOperator" and node["opcode"] in COMPARISONS and span:
        sides = [_span(child, text) for child in inner]
        if sides[0] and sides[1] and "expansionLoc" not in node["range"]["begin"]:
            spot = _Spot(*span, node["opcode"], *sides)
            for child in inner:
                direct = node["opcode"] not in {"==", "!="} and _bare(child).get("kind") == "IntegerLiteral"
                if not direct:  # or its mutants would be those of the comparison
                    spot.inner += _spots(child, text, compared=True)
            yield spot
            return
    if kind == "IntegerLiteral" and compared and span and "expansionLoc" not in node["range"]["begin"]:
        yield _Spot(*span, "")
        return
    below = compared and kind not in {"CallExpr", "ArraySubscriptExpr", "CompoundStmt"}
    for child in inner:
        yield from _spots(child, text, compared=below)


def _bare(node: dict[str, Any]) -> dict[str, Any]:
    while node.get("kind") in {"ImplicitCastExpr", "ParenExpr"}:
        node = node["inner"][0]
    return node


class _Rewriter:
    def __init__(self, file: str, text: bytes, sites: Sites) -> None:
        self._file = file
        self._text = text
        self._sites = sites

    def render(self, begin: int, end: int, spots: list[_Spot]) -> str:
        """The text from `begin` to `end` with these spots in it rewritten."""
        parts, at = [], begin
        for spot in sorted(spots, key=lambda spot: spot.begin):
            parts += [self._text[at : spot.begin].decode(), self._choice(spot)]
            at = spot.end
        return "".join((*parts, self._text[at:end].decode()))

    def _choice(self, spot: _Spot) -> str:
        words = [" ".join(self._text[a:b].decode().split()) for a, b in (spot.left, spot.right)]
        line = self._text[self._text.rfind(b"\n", 0, spot.begin) + 1 :].partition(b"\n")[0].decode()
        if not spot.kind:
            number = self._text[spot.begin : spot.end].decode()
            site = self._sites.add(self._file, line, "", number)
            return f"WM_NUMBER({number}, {site.number}, {site.first})"
        site = self._sites.add(self._file, line, spot.kind, *words)
        sides = [
            self.render(*side, [inner for inner in spot.inner if side[0] <= inner.begin < side[1]])
            for side in (spot.left, spot.right)
        ]
        left, right = f"wm_l{site.number}", f"wm_r{site.number}"
        choice = f"{left} {spot.kind} {right}"
        for i, form in enumerate(COMPARISONS[spot.kind]):
            choice = f"wm_mutant == {site.first + i} ? {form.format(l=left, r=right)} : {choice}"
        return (
            f"({{ __auto_type {left} = {sides[0]}; __auto_type {right} = {sides[1]}; "
            f"wm_reached[{site.number}] = 1; {choice}; }})"
        )


def rewritten(root: Path, name: str, sites: Sites) -> str:
    """Return the text of a file of csrc with all its mutants, and add their sites."""
    path = root / "csrc" / name
    command = ["clang", "-xc", "-std=c11", f"-I{root / 'csrc'}", "-Xclang", "-ast-dump=json", "-fsyntax-only", path]
    tree = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    text = path.read_bytes()
    bodies = [
        body
        for function in tree["inner"]
        if function["kind"] == "FunctionDecl"
        for body in function.get("inner", ())
        if body["kind"] == "CompoundStmt" and _span(body, text)
    ]
    spots = [spot for body in bodies for spot in _spots(body, text, compared=False)]
    spots = [spot for spot in spots if _belongs(spot, bodies, text)]
    return _Rewriter(f"csrc/{name}", text, sites).render(0, len(text), spots)


def build(root: Path, folder: Path, names: tuple[str, ...]) -> Sites:
    """Copy the package to `folder`, its C files of these names with all their mutants, and compile it there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("csrc", "src"):
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, folder)
    sites = Sites()
    for name in names:
        text = rewritten(root, name, sites)
        (folder / "csrc" / name).write_text('#include "mutants.h"\n' + text, encoding="utf-8")
    (folder / "csrc/mutants.h").write_text(SWITCH, encoding="utf-8")
    definitions = f'#include "mutants.h"\nint wm_mutant = -1;\nunsigned char wm_reached[{len(sites)}];\n'
    (folder / "csrc/mutants.c").write_text(definitions, encoding="utf-8")
    quiet = {**os.environ, "CFLAGS": "-w"}  # a number in a variable is compared with another sign than a literal
    subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=folder, env=quiet, check=True)
    return sites


def _belongs(spot: _Spot, bodies: list[dict[str, Any]], text: bytes) -> bool:
    """Whether a spot lies in a body of this file, and not in one of a header that it includes."""
    spans = [span for body in bodies if (span := _span(body, text))]
    return any(begin < spot.begin and spot.end <= end for begin, end in spans)
