"""Mutants of Python: modules are changed while they are imported. Each comparison becomes a call."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import operator
import pkgutil
import sys
from typing import TYPE_CHECKING, Any

from .sites import Sites

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import CodeType, ModuleType

OPERATORS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
# In the order of sites.COMPARISONS.
MUTANTS: dict[str, tuple[Callable[[Any, Any], Any], ...]] = {
    "<": (operator.le, lambda a, b: a + 1 < b, operator.ge),
    "<=": (operator.lt, lambda a, b: a <= b + 1, operator.gt),
    ">": (operator.ge, lambda a, b: a > b + 1, operator.le),
    ">=": (operator.gt, lambda a, b: a + 1 >= b, operator.lt),
    "==": (operator.ne,),
    "!=": (operator.eq,),
}
PLAIN = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne}


class Switch:
    """Switches mutants on, and notes which comparisons were reached."""

    def __init__(self) -> None:
        self.sites = Sites()
        self.reached = bytearray()
        # The code of modules: one that is imported again keeps its sites.
        self.codes: dict[str, CodeType] = {}
        # Sites that have compared whole numbers, and those that have compared others, where "one more" means nothing.
        self.whole: set[int] = set()
        self.other: set[int] = set()
        self._kinds: list[str] = []
        self._actions: list[Any] = []

    def add(self, file: str, line: str, kind: str, left: str, right: str = "", *, importing: bool = False) -> int:
        """Add a site and return its number."""
        site = self.sites.add(file, line, kind, left, right, importing=importing)
        self.reached.append(0)
        self._kinds.append(kind)
        self._actions.append(PLAIN[kind] if kind else 0)
        return site.number

    def compare(self, number: int, left: Any, right: Any) -> Any:
        """Compare as the source says, or as the mutant that is on does."""
        self.reached[number] = 1
        if type(left) is not int or type(right) is not int:
            self.other.add(number)
        else:
            self.whole.add(number)
        return self._actions[number](left, right)

    def number(self, number: int, value: int) -> int:
        """Return the value, or as the mutant that is on has it."""
        self.reached[number] = 1
        changed: int = value + self._actions[number]
        return changed

    def on(self, number: int, mutant: int) -> None:
        """Switch a mutant of a site on, for good."""
        kind = self._kinds[number]
        self._actions[number] = MUTANTS[kind][mutant] if kind else (1, -1)[mutant]


class _Changer(ast.NodeTransformer):
    def __init__(self, switch: Switch, file: str, text: str) -> None:
        self._switch = switch
        self._file = file
        self._lines = text.splitlines()
        self._compared = False
        self._depth = 0  # of functions

    def _add(self, node: ast.expr, kind: str, left: str, right: str = "") -> int:
        line = self._lines[node.lineno - 1]
        return self._switch.add(self._file, line, kind, left, right, importing=self._depth == 0)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._depth += 1
        try:
            return self.generic_visit(node)
        finally:
            self._depth -= 1

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        kind = OPERATORS.get(type(node.ops[0]))
        if len(node.ops) > 1 or kind is None:  # `in`, `is`; or a chain, which is taken apart
            parts = [node.left, *node.comparators]
            simple = all(isinstance(part, ast.Name | ast.Constant | ast.Attribute) for part in parts[1:-1])
            if len(node.ops) == 1 or not simple:
                return self.generic_visit(node)
            links = zip(parts, node.ops, parts[1:], strict=False)
            chain = [ast.copy_location(ast.Compare(a, [op], [b]), node) for a, op, b in links]
            return ast.copy_location(ast.BoolOp(ast.And(), [self.visit(link) for link in chain]), node)
        left, right = node.left, node.comparators[0]
        number = self._add(node, kind, ast.unparse(left), ast.unparse(right))
        sides = [self._side(side, equality=kind in {"==", "!="}) for side in (left, right)]
        return self._call("compare", number, sides, node)

    def _side(self, node: ast.expr, *, equality: bool) -> ast.expr:
        if isinstance(node, ast.Constant) and not equality:
            return node
        before, self._compared = self._compared, True
        try:
            changed: ast.expr = self.visit(node)
        finally:
            self._compared = before
        return changed

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not self._compared or type(node.value) is not int:
            return node
        number = self._add(node, "", str(node.value))
        return self._call("number", number, [node], node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        before, self._compared = self._compared, False
        try:
            return self.generic_visit(node)
        finally:
            self._compared = before

    visit_Subscript = visit_Lambda = visit_Call  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    @staticmethod
    def _call(method: str, number: int, sides: list[ast.expr], node: ast.expr) -> ast.Call:
        function = ast.Attribute(ast.Name("__mutants__", ast.Load()), method, ast.Load())
        return ast.fix_missing_locations(
            ast.copy_location(ast.Call(function, [ast.Constant(number), *sides], []), node)
        )


def sites_of(root: Path, file: str) -> Sites:
    """Return the sites of a module, by its path from the root of the repository, without importing it."""
    switch, text = Switch(), (root / file).read_text(encoding="utf-8")
    _Changer(switch, file, text).visit(ast.parse(text))
    return switch.sites


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, switch: Switch, file: str) -> None:
        super().__init__(name, path)
        self._switch = switch
        self._file = file

    def get_code(self, fullname: str) -> CodeType:
        known = self._switch.codes.get(fullname)
        if known is not None:
            return known
        text = self.get_source(fullname) or ""
        changer = _Changer(self._switch, self._file, text)
        tree = ast.fix_missing_locations(changer.visit(ast.parse(text)))
        code = compile(tree, self.get_filename(fullname), "exec", dont_inherit=True)
        self._switch.codes[fullname] = code
        return code

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__mutants__"] = self._switch
        super().exec_module(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules to change, by the beginnings of their names, and changes them."""

    def __init__(self, switch: Switch, source: Path, prefixes: tuple[str, ...]) -> None:
        self._switch = switch
        self._source = source
        self._prefixes = prefixes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return how to import a module that is changed; None for all others."""
        if not any(fullname == prefix or fullname.startswith(prefix + ".") for prefix in self._prefixes):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        file = "src/" + spec.origin.partition(f"{self._source}/")[2]
        loader = _Loader(fullname, spec.origin, self._switch, file)
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=loader, submodule_search_locations=spec.submodule_search_locations
        )


def install(source: Path, prefixes: tuple[str, ...]) -> Switch:
    """Import modules of these names, and all below, from the folder `source`, changed."""
    switch = Switch()
    sys.meta_path.insert(0, Finder(switch, source, prefixes))
    for prefix in prefixes:
        path = getattr(importlib.import_module(prefix), "__path__", ())
        for module in pkgutil.walk_packages(path, f"{prefix}."):
            importlib.import_module(module.name)
    return switch
