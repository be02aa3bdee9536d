"""The text of a Python file with its syntax tree: the position of each node, and its source text elsewhere."""

from __future__ import annotations

import ast
from functools import cached_property

# Nodes that need no parentheses in any position.
_ATOMS = (
    ast.Name,
    ast.Constant,
    ast.Attribute,
    ast.Subscript,
    ast.Call,
    ast.List,
    ast.Dict,
    ast.Set,
    ast.ListComp,
    ast.JoinedStr,
)
_TYPES = ("tuple", "list", "dict", "set", "frozenset", "type", "Callable", "Iterable", "Mapping", "Sequence")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Source:
    def __init__(self, text: str):
        self.text, self.tree = text, ast.parse(text)
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def place(self, line: int, column: int) -> int:
        """column: in bytes of UTF-8, like in the syntax tree."""
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        return self._starts[line - 1] + (column if text.isascii() else len(text.encode()[:column].decode()))

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.place(node.lineno, node.col_offset), self.place(node.end_lineno, node.end_col_offset)

    def words(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def alone(self, node: ast.AST) -> str:
        """The source of a node in a form that is a single operand."""
        words = self.words(node)
        bare = isinstance(node, _ATOMS) or (words.startswith("(") and isinstance(node, (ast.Tuple, ast.GeneratorExp)))
        return words if bare and "\n" not in words and not words[0].isdigit() else f"({words})"

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def function_of(self, node: ast.AST) -> ast.AST | None:
        while node is not None and not isinstance(node, _FUNCTIONS):
            node = self.parents.get(node)
        return node

    @cached_property
    def skipped(self) -> set[ast.AST]:
        """Annotations, imports, and texts that the program does not compute with."""
        found: set[ast.AST] = set()
        for node in ast.walk(self.tree):
            kinds = [getattr(node, "annotation", None), getattr(node, "returns", None)]
            named = _is_text(node) or _is_for_types(node) or _is_alias(node)
            kinds += [node] if isinstance(node, (ast.Import, ast.ImportFrom)) or named else []
            for kind in kinds:
                found |= set(ast.walk(kind)) if kind is not None else set()
        return found


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_alias(node: ast.AST) -> bool:
    """Whether a statement defines a type: its name is used in annotations."""
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.annotation) in ("TypeAlias", "typing.TypeAlias")
    if not isinstance(node, ast.Assign) or node.col_offset or not isinstance(node.value, ast.Subscript):
        return False
    return ast.unparse(node.value.value) in _TYPES
