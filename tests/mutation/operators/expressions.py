"""Operators on expressions of Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from tests.mutation.operators.fault import Change
from tests.mutation.operators.source import Source

COMPARISONS = {
    ast.Lt: ("<=", ">"), ast.LtE: ("<", ">="), ast.Gt: (">=", "<"), ast.GtE: (">", "<="), ast.Eq: ("!=",), ast.NotEq: ("==",),
    ast.In: ("not in",), ast.NotIn: ("in",), ast.Is: ("is not",), ast.IsNot: ("is",),
}  # fmt: skip
ARITHMETIC = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "/", ast.Mod: "//", ast.LShift: ">>",
    ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&", ast.BitXor: "|", ast.Pow: "*",
}  # fmt: skip
ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def changes(source: Source, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, (ast.Compare, ast.BoolOp)):
        yield from conditions(source, node)
    handler = _HANDLERS.get(type(node))
    if handler:
        yield from handler(source, node)


def conditions(source: Source, test: ast.expr) -> Iterator[Change]:
    """Replaces a condition by one that always holds, never holds, or holds in wrong cases."""
    start, end = source.span(test)
    for operator, new in (("always", "True"), ("never", "False"), ("inverted", f"not {source.alone(test)}")):
        yield Change(operator, start, end, new)


def fixed(source: Source, value: ast.expr) -> Iterator[Change]:
    """Replaces a computed value by a constant."""
    if not isinstance(value, (ast.Constant, ast.Starred, ast.Lambda)):
        empty = {ast.ListComp: ("[]",), ast.DictComp: ("{}",), ast.SetComp: ("set()",)}.get(type(value), ("0", "None"))
        for new in empty:
            yield Change("constant", *source.span(value), new)


def near(source: Source, node: ast.expr) -> Iterator[Change]:
    """Off by one."""
    start, end = source.span(node)
    if not isinstance(node, ast.Constant):
        yield Change("off by one", start, end, f"{source.alone(node)} + 1")
        yield Change("off by one", start, end, f"{source.alone(node)} - 1")


def _compare(source: Source, node: ast.Compare) -> Iterator[Change]:
    values = [node.left, *node.comparators]
    for at, op in enumerate(node.ops):
        start, end = source.span(values[at])[1], source.span(values[at + 1])[0]
        between = source.text[start:end]
        for new in COMPARISONS[type(op)]:
            old = " ".join(between.replace("(", " ").replace(")", " ").split())
            place = start + between.find(old.split()[0])
            yield Change("comparison", place, place + len(old), new)
        if isinstance(op, ORDERED):
            yield from near(source, values[at])
            yield from near(source, values[at + 1])
            yield Change("constant", *source.span(values[at + 1]), "0")
    whole = source.span(node)
    if len(node.ops) == 1:
        yield Change("dropped term", *whole, source.alone(values[0]))
        yield Change("dropped term", *whole, source.alone(values[1]))
    else:
        yield Change("dropped term", whole[0], source.span(values[1])[0], "")
        yield Change("dropped term", source.span(values[-2])[1], whole[1], "")


def _boolean(source: Source, node: ast.BoolOp) -> Iterator[Change]:
    start, end = source.span(node)
    joined = " or " if isinstance(node.op, ast.And) else " and "
    yield Change("and for or", start, end, f"({joined.join(source.alone(value) for value in node.values)})")
    word = f" {'and' if isinstance(node.op, ast.And) else 'or'} "
    for at, value in enumerate(node.values):
        rest = [source.alone(other) for other in node.values[:at] + node.values[at + 1 :]]
        yield Change("dropped condition", start, end, rest[0] if len(rest) == 1 else f"({word.join(rest)})")
        yield from conditions(source, value)


def _unary(source: Source, node: ast.UnaryOp) -> Iterator[Change]:
    inner = node.operand
    if isinstance(node.op, ast.USub) and isinstance(inner, ast.BinOp) and isinstance(inner.left, ast.UnaryOp):
        less = f"{source.alone(inner.left.operand)} {_sign(source, inner)} {source.alone(inner.right)}"
        yield Change("rounded down", *source.span(node), f"({less})")
    if not isinstance(node.op, ast.UAdd):
        yield Change("lost sign", *source.span(node), source.alone(node.operand))


def _binary(source: Source, node: ast.BinOp) -> Iterator[Change]:
    start, end = source.span(node)
    left, right = source.alone(node.left), source.alone(node.right)
    if not isinstance(node.op, ast.Mod):
        yield from near(source, node.left)
        yield from near(source, node.right)
    yield Change("dropped term", start, end, left)
    yield Change("dropped term", start, end, right)
    yield Change("arithmetic", start, end, f"({left} {ARITHMETIC.get(type(node.op), '+')} {right})")
    if isinstance(node.op, (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.LShift, ast.RShift)):
        yield Change("swapped operands", start, end, f"({right} {_sign(source, node)} {left})")


def _sign(source: Source, node: ast.BinOp) -> str:
    return source.text[source.span(node.left)[1] : source.span(node.right)[0]].strip("() \n\\")


def _choice(source: Source, node: ast.IfExp) -> Iterator[Change]:
    start, end = source.span(node)
    yield from fixed(source, node.body)
    yield from fixed(source, node.orelse)
    yield Change("lost else", start, end, source.alone(node.body))
    yield Change("dropped branch", start, end, source.alone(node.orelse))
    yield from conditions(source, node.test)


def _subscript(source: Source, node: ast.Subscript) -> Iterator[Change]:
    start, end = source.span(node)
    if isinstance(node.ctx, ast.Load):
        yield Change("whole for a part", start, end, source.words(node.value))
    part = node.slice
    if isinstance(part, ast.Slice):
        for bound in filter(None, (part.lower, part.upper, part.step)):
            yield Change("dropped bound", *source.span(bound), "")
            yield from near(source, bound)
            yield Change("constant", *source.span(bound), "0")
    elif not isinstance(part, (ast.Constant, ast.Tuple)):
        yield from near(source, part)
        yield Change("first for any", *source.span(part), "0")


def _comprehension(source: Source, node: ast.comprehension) -> Iterator[Change]:
    for test in node.ifs:
        yield from conditions(source, test)
        start, end = source.span(test)
        yield Change("removed guard", source.text.rindex("if", 0, start), end, "")
    yield from ends(source, node.iter)


def ends(source: Source, many: ast.expr) -> Iterator[Change]:
    """Without the first, without the last, or empty."""
    start, end = source.span(many)
    yield Change("lost loop", start, end, "()")
    yield Change("lost end", start, end, f"list({source.words(many)})[1:]")
    yield Change("lost end", start, end, f"list({source.words(many)})[:-1]")


def _elements(source: Source, node: ast.Tuple | ast.List | ast.Set | ast.Dict) -> Iterator[Change]:
    if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        return
    if any(isinstance(value, ast.Slice) for value in getattr(node, "elts", ())):
        return
    values = node.values if isinstance(node, ast.Dict) else node.elts
    keys = node.keys if isinstance(node, ast.Dict) else [None] * len(values)
    spans = [(_begin(source, key, value), source.span(value)[1]) for key, value in zip(keys, values, strict=True)]
    for at, value in enumerate(values):
        yield Change("dropped element", *source.span(node), _without(source, node, spans, at))
        yield from fixed(source, value)
    for one, two in pairwise(values):
        between = source.text[source.span(one)[1] : source.span(two)[0]]
        turned = f"{source.words(two)}{between}{source.words(one)}"
        yield Change("swapped elements", source.span(one)[0], source.span(two)[1], turned)


def _begin(source: Source, key: ast.expr | None, value: ast.expr) -> int:
    """Start of an element: its key, or the stars of `**value`."""
    start = source.span(value if key is None else key)[0]
    before = source.text[:start].rstrip()
    return len(before) - 2 if before.endswith("**") else start


def _without(source: Source, node: ast.expr, spans: list[tuple[int, int]], at: int) -> str:
    """The source of a literal without one of its elements."""
    first, last = source.span(node)
    text = source.text
    rest = [text[start:end] for place, (start, end) in enumerate(spans) if place != at]
    if isinstance(node, ast.Tuple) and len(rest) < 2:
        return f"({rest[0]},)" if rest else "()"
    if not rest:
        return "set()" if isinstance(node, ast.Set) else text[first] + text[last - 1]
    if at + 1 < len(spans):
        return text[first : spans[at][0]] + text[spans[at + 1][0] : last]
    return text[first : spans[at - 1][1]] + text[spans[at][1] : last]


def _formatted(source: Source, node: ast.JoinedStr) -> Iterator[Change]:
    for value in node.values:
        start, end = source.span(value) if isinstance(value, ast.FormattedValue) else (0, 0)
        if end and source.text[start:end].startswith("{"):
            yield Change("dropped element", start, end, "")


_HANDLERS = {
    ast.Compare: _compare, ast.BoolOp: _boolean, ast.UnaryOp: _unary, ast.BinOp: _binary, ast.IfExp: _choice,
    ast.Subscript: _subscript, ast.comprehension: _comprehension, ast.Tuple: _elements, ast.List: _elements, ast.Set: _elements,
    ast.Dict: _elements, ast.JoinedStr: _formatted,
}  # fmt: skip
