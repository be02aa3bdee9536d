"""Operators on statements of Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.mutation.operators.expressions import conditions, ends, fixed, near
from tests.mutation.operators.fault import Change
from tests.mutation.operators.source import Source

KEPT = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)
AUGMENTED = {ast.Add: "-=", ast.Sub: "+=", ast.Mult: "/=", ast.BitOr: "&=", ast.BitAnd: "|="}


def changes(source: Source, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.stmt) and not isinstance(node, KEPT):
        yield from _lost(source, node)
    handler = _HANDLERS.get(type(node))
    if handler:
        yield from handler(source, node)


def _lost(source: Source, node: ast.stmt) -> Iterator[Change]:
    """Removes a statement. A module constant is not removed, because its users could not be imported."""
    if not isinstance(source.parents.get(node), ast.Module):
        yield Change("lost statement", *source.span(node), "pass")


def _if(source: Source, node: ast.If) -> Iterator[Change]:
    yield from conditions(source, node.test)
    if node.orelse:
        start, end = source.span(node.body[-1])[1], source.span(node.orelse[-1])[1]
        yield Change("lost else", start, end, "")


def _assign(source: Source, node: ast.Assign) -> Iterator[Change]:
    if source.function_of(node) is not None:
        yield from fixed(source, node.value)
        yield from near(source, node.value)


def _while(source: Source, node: ast.While) -> Iterator[Change]:
    start, end = source.span(node.test)
    first = source.span(node)[0]
    if not node.orelse and not any(isinstance(one, (ast.Break, ast.Continue)) for one in ast.walk(node)):
        yield Change("once", first, first + len("while"), "if")
    yield Change("never", start, end, "False")
    yield Change("inverted", start, end, f"not {source.alone(node.test)}")


def _for(source: Source, node: ast.For) -> Iterator[Change]:
    yield from ends(source, node.iter)


def _return(source: Source, node: ast.Return) -> Iterator[Change]:
    if node.value is None:
        return
    start, end = source.span(node.value)
    yield Change("other result", start, end, "None")
    yield Change("other result", start, end, "0")
    yield from near(source, node.value)
    if isinstance(node.value, (ast.Compare, ast.BoolOp, ast.UnaryOp)) or _says_bool(source, node):
        yield from conditions(source, node.value)


def _says_bool(source: Source, node: ast.Return) -> bool:
    returns = getattr(source.function_of(node), "returns", None)
    return returns is not None and ast.unparse(returns) == "bool"


def _augmented(source: Source, node: ast.AugAssign) -> Iterator[Change]:
    start, end = source.span(node.target)[1], source.span(node.value)[0]
    between = source.text[start:end]
    sign = between.strip("( \n")
    place = start + between.find(sign)
    yield Change("arithmetic", place, place + len(sign), AUGMENTED.get(type(node.op), "="))
    yield from fixed(source, node.value)
    yield Change("overwritten", place, place + len(sign), "=")


def _with(source: Source, node: ast.With) -> Iterator[Change]:
    """Replaces a statement by its body, if it binds no name."""
    if all(item.optional_vars is None for item in node.items):
        start, end = source.span(node)[0], source.span(node.items[-1].context_expr)[1]
        rest = source.text[end : source.span(node.body[0])[0]]
        yield Change("lost guard", start, end + rest.index(":"), "if True")


def _handler(source: Source, node: ast.ExceptHandler) -> Iterator[Change]:
    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else []
    for at in range(len(kinds)):
        rest = ", ".join(source.words(kind) for kind in kinds[:at] + kinds[at + 1 :])
        yield Change("dropped element", *source.span(node.type), f"({rest},)")
    if node.type is not None and not kinds:
        yield Change("lost handler", *source.span(node.type), "ArithmeticError")


def _loop_word(source: Source, node: ast.Break | ast.Continue) -> Iterator[Change]:
    yield Change("break for continue", *source.span(node), "continue" if isinstance(node, ast.Break) else "break")


def _decorated(source: Source, node: ast.FunctionDef) -> Iterator[Change]:
    for decorator in node.decorator_list:
        start, end = source.span(decorator)
        if source.words(decorator) not in ("staticmethod", "classmethod", "property", "cached_property", "overload"):
            yield Change("lost decorator", source.text.rindex("@", 0, start), end, "")


_HANDLERS = {
    ast.If: _if, ast.Assign: _assign, ast.While: _while, ast.For: _for, ast.Return: _return, ast.AugAssign: _augmented,
    ast.With: _with, ast.ExceptHandler: _handler, ast.Break: _loop_word, ast.Continue: _loop_word, ast.FunctionDef: _decorated,
}  # fmt: skip
