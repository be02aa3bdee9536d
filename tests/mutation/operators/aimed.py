"""Selects the few tests that judge a line, from a recording (touched.py): the cheapest tests that run it, or else those nearest
to it.

A line that runs while its module is imported defines a name: tests that run other lines with this name judge it. If no kernel
has code for a line of C++ (a declaration, a part of a statement), the nearest lines with code are used.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from tests.mutation.operators.population import ROOT, files
from tests.mutation.operators.touched import Best, Timed

MOST, SECONDS = 30, 8.0  # of Python: tests, and what they took when they were recorded
MOST_KERNELS, SECONDS_KERNELS = 8, 40.0
MORE, MORE_SECONDS = 80, 40.0
MORE_KERNELS, MORE_SECONDS_KERNELS = 24, 100.0
NEAR = 40  # lines
WIDE = 3  # how many of the nearest lines have more tests
_WORD = re.compile(r"[A-Za-z_]\w+")
_SIMPLE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)


def tests_of(file: str, line: int, best: Best) -> list[Timed]:
    """The tests that judge a line, cheapest first; empty if nothing runs near it."""
    is_python = file.endswith(".py")
    places = _of_python(file, line, best) if is_python else _of_kernel(file, line)
    most, seconds = (MOST, SECONDS) if is_python else (MOST_KERNELS, SECONDS_KERNELS)
    for some in places:
        found = _cheapest((test for place in some for test in best.tests(*place)), most, seconds)
        if found:
            return found
    return []


def more_of(file: str, line: int, best: Best) -> list[Timed]:
    """Test functions for a fault that the first tests missed: these with all parameters, then others of the
    line and around it.
    """
    is_python = file.endswith(".py")
    places = _of_python(file, line, best) if is_python else _of_kernel(file, line)
    own = [test for some in islice(places, WIDE) for place in some for test in best.tests(*place)]
    others = _cheapest(own, *((MORE, MORE_SECONDS) if is_python else (MORE_KERNELS, MORE_SECONDS_KERNELS)))
    functions = {test.function: test for test in (*tests_of(file, line, best), *others)}
    return [Timed(test.cost, test.seconds, name) for name, test in functions.items()]


def _cheapest(tests: Iterable[Timed], most: int, seconds: float) -> list[Timed]:
    by_function: dict[str, Timed] = {}
    for test in tests:
        if test.function not in by_function or test < by_function[test.function]:
            by_function[test.function] = test
    found: list[Timed] = []
    for test in sorted(by_function.values())[:most]:
        if found and sum(one.seconds for one in found) + test.seconds > seconds:
            break
        found.append(test)
    return found


Places = list[tuple[str, int]]


def _of_python(file: str, line: int, best: Best) -> Iterator[Places]:
    """The line, its statement, the lines elsewhere that have its names, its function, its file."""
    yield [(file, line)]
    around = _around(file, line)
    yield [(file, number) for number in range(*around.statement)]
    if around.function is None:
        names = _names(around.defined)
        yield [place for name in names for place in _lines_with(name) if place in best.of]
    else:
        yield [(file, number) for number in range(*around.function)]
    yield [(file, number) for number in range(1, len(_lines(file)) + 1)]


def _of_kernel(file: str, line: int) -> Iterator[Places]:
    for far in range(NEAR):
        yield [(file, line + far), (file, line - far)]
    yield [(file, number) for number in range(1, len(_lines(file)) + 1)]


class Around:
    """For a line of Python: the first line and the line past the last of its statement and function, and its words."""

    def __init__(self, tree: ast.Module, text: list[str], line: int):
        self.function: tuple[int, int] | None = None
        self.statement, node = (line, line + 1), None
        for one in ast.walk(tree):
            if isinstance(one, ast.stmt) and _first(one) <= line <= (one.end_lineno or 0):
                if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    self.function = one.body[0].lineno, (one.end_lineno or 0) + 1
                if not isinstance(one, _SIMPLE) and (node is None or _first(one) >= _first(node)):
                    node = one
        if node is not None:
            self.statement = _first(node), (node.end_lineno or 0) + 1
        self.defined = " ".join(text[self.statement[0] - 1 : self.statement[1] - 1])


def _first(node: ast.stmt) -> int:
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])


@cache
def _around(file: str, line: int) -> Around:
    lines = _lines(file)
    return Around(ast.parse("\n".join(lines)), lines, line)


def _names(statement: str) -> list[str]:
    """The name that an assignment at the top of a module or class gives; else all its names."""
    target = re.match(r"\s*(\w+)\s*(?::[^=]+)?=", statement)
    return [target[1]] if target else sorted(set(_WORD.findall(statement)))


@cache
def _lines_with(name: str) -> list[tuple[str, int]]:
    word = re.compile(rf"\b{name}\b")
    return [
        (file, number)
        for file in files()
        if file.endswith(".py")
        for number, text in enumerate(_lines(file), 1)
        if word.search(text)
    ]


@cache
def _lines(file: str) -> list[str]:
    return Path(ROOT / file).read_text().splitlines()
