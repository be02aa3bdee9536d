"""Operators on calls, constants and names of Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from tests.mutation.operators import forms
from tests.mutation.operators.expressions import fixed, near
from tests.mutation.operators.fault import Change
from tests.mutation.operators.source import Source

OTHERS = {
    "min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor", "amin": "amax", "amax": "amin",
    "prod": "sum", "lstrip": "rstrip", "removeprefix": "removesuffix", "partition": "rpartition", "startswith": "endswith",
    "nextafter": "copysign", "logical_and": "logical_or", "zeros": "ones", "isnan": "isinf", "append": "extend",
    "log": "log2", "log2": "log", "exp": "exp2", "exp2": "exp", "ljust": "rjust", "sorted": "list", "pop": "get",
    "new_zeros": "new_ones",
    "argmax": "argmin", "argmin": "argmax", "empty": "zeros", "minimum": "maximum", "maximum": "minimum", "finditer": "findall",
}  # fmt: skip
COUNTING = ("range", "slice", "min", "max")
ORDINARY = ("range", "len", "isinstance", "getattr", "setattr", "super", "cast", "print", "type")


def changes(source: Source, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Call):
        yield from _call(source, node)
    elif isinstance(node, ast.Constant):
        yield from _constant(source, node)
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield from _attribute(source, node)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield from _name(source, node)


def _call(source: Source, node: ast.Call) -> Iterator[Change]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    start, end = source.span(node)
    if name in OTHERS:
        stop = source.span(node.func)[1]
        yield Change("other function", stop - len(name), stop, OTHERS[name])
    if name in COUNTING:
        for argument in node.args:
            yield from near(source, argument)
    if node.func in _functions(source):
        yield from _neighbours(_functions(source)[node.func], name, source.span(node.func)[1])
    for value in (*node.args, *(keyword.value for keyword in node.keywords)):
        yield from fixed(source, value)
    yield from _dropped(source, node)
    last = node.args[-1] if node.args else None
    if isinstance(last, ast.BinOp):  # f(a + b) as f(a) + b
        inner, outer = source.span(last.left)[1], source.text[source.span(last.left)[1] : source.span(last)[1]]
        yield Change("regrouped", inner, source.span(last)[1] + 1, f"){outer}")
    for one, two in pairwise(node.args):
        yield Change("swapped arguments", source.span(one)[0], source.span(two)[1], f"{source.words(two)}, {source.words(one)}")
    if name not in ORDINARY:
        inner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        for value in [*inner, *node.args]:
            if not isinstance(value, ast.Starred):
                yield Change("lost call", start, end, source.alone(value))


def _functions(source: Source) -> dict[ast.expr, list[str]]:
    """The names that a file calls, in order: those without a dot, and those after the same prefix."""
    if not hasattr(source, "functions"):
        called: dict[str, list[ast.expr]] = {}
        for one in ast.walk(source.tree):
            if isinstance(one, ast.Call) and isinstance(one.func, (ast.Name, ast.Attribute)):
                called.setdefault(ast.unparse(one.func.value) if isinstance(one.func, ast.Attribute) else "", []).append(
                    one.func
                )
        names = {
            words: list(dict.fromkeys(getattr(f, "attr", getattr(f, "id", "")) for f in some)) for words, some in called.items()
        }
        source.functions = {function: names[words] for words, some in called.items() for function in some}
    return source.functions


def _dropped(source: Source, node: ast.Call) -> Iterator[Change]:
    """A call without one of its arguments."""
    values = [*node.args, *node.keywords]
    spans = sorted(source.span(value) for value in values)
    for at, (start, end) in enumerate(spans):
        if at + 1 < len(spans):
            yield Change("dropped argument", start, spans[at + 1][0], "")
        else:
            yield Change("dropped argument", spans[at - 1][1] if at else start, end, "")


def _constant(source: Source, node: ast.Constant) -> Iterator[Change]:
    start, end = source.span(node)
    value = node.value
    if isinstance(source.parents.get(node), ast.JoinedStr):
        return
    if isinstance(value, bool):
        yield Change("wrong constant", start, end, str(not value))
    elif isinstance(value, (int, float)):
        for new in dict.fromkeys((value + 1, value - 1, 0) if isinstance(value, int) else (value * 2, value + 1)):
            yield Change("wrong constant", start, end, repr(new) if new >= 0 else f"({new!r})")
    elif isinstance(value, str):
        yield from _text(source, node, start, end)


def _text(source: Source, node: ast.Constant, start: int, end: int) -> Iterator[Change]:
    words = source.text[start:end]
    yield from forms.changes(words, start)
    if node.value and " " not in node.value:  # messages are for people
        quote = words[-1]
        yield Change("wrong constant", start, end, quote * 2)
        yield Change("wrong constant", start, end, _quoted(node.value[:-1], quote))
    texts = _texts(source)
    at = texts.index(node.value)
    for other in texts[max(at - 1, 0) : at + 2]:
        if other != node.value:
            yield Change("other name", start, end, _quoted(other, words[-1]))


def _quoted(text: str, quote: str) -> str:
    """A literal with the quotes of the one that it replaces, which may be inside an f-string."""
    words = repr(text)
    return words if words[0] == quote or quote in text else quote + words[1:-1] + quote


def _texts(source: Source) -> list[str]:
    if not hasattr(source, "texts"):
        known = (node for node in ast.walk(source.tree) if isinstance(node, ast.Constant) and node not in source.skipped)
        source.texts = list(dict.fromkeys(node.value for node in known if isinstance(node.value, str)))
    return source.texts


def _attribute(source: Source, node: ast.Attribute) -> Iterator[Change]:
    """Another attribute of the same object that this file reads."""
    end = source.span(node)[1]
    is_call = lambda one: isinstance(parent := source.parents.get(one), ast.Call) and parent.func is one  # noqa: E731
    if is_call(node):
        return
    if not hasattr(source, "attributes"):
        source.attributes = {}
        for one in ast.walk(source.tree):
            if isinstance(one, ast.Attribute) and not is_call(one) and one not in source.skipped:
                source.attributes.setdefault(ast.unparse(one.value), {})[one.attr] = None
    yield from _neighbours(list(source.attributes[ast.unparse(node.value)]), node.attr, end)


def _name(source: Source, node: ast.Name) -> Iterator[Change]:
    """Another variable of the function: often an earlier value."""
    function = source.function_of(node)
    parent = source.parents.get(node)
    called = isinstance(parent, ast.Call) and parent.func is node
    if called:
        return
    yield from _global(source, node)
    if function is None:
        return
    if not hasattr(source, "locals"):
        source.locals = {}
    if function not in source.locals:
        names = [one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg) and one.arg not in ("self", "cls")]
        names += [one.id for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
        source.locals[function] = list(dict.fromkeys(names))
    if node.id in source.locals[function]:
        yield from _neighbours(source.locals[function], node.id, source.span(node)[1])


def _global(source: Source, node: ast.Name) -> Iterator[Change]:
    """Another name of the module: a constant for a constant, a function for a function."""
    if not hasattr(source, "globals"):
        bound: list[str] = []
        for one in source.tree.body:
            bound += [alias.asname or alias.name for alias in one.names] if isinstance(one, ast.ImportFrom) else []
            targets = one.targets if isinstance(one, ast.Assign) else []
            bound += [one.name] if isinstance(one, (ast.ClassDef, ast.FunctionDef)) else []
            bound += [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        source.globals = list(dict.fromkeys(bound))
    alike = [name for name in source.globals if name.isupper() == node.id.isupper()]
    if node.id in alike:
        yield from _neighbours(alike, node.id, source.span(node)[1])


def _neighbours(names: list[str], name: str, end: int) -> Iterator[Change]:
    at = names.index(name)
    for other in (*names[max(at - 1, 0) : at], *names[at + 1 : at + 2]):
        yield Change("other name", end - len(name), end, other)
