"""Lowers a program to the tuples that templates print as C++: one statement for each node of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from opfacade.backends.cuda import support
from opfacade.backends.cuda.programs.ranges import is_plain_divisor
from opfacade.core.candidate import Reason
from opfacade.core.target import Target
from opfacade.plans._folds.program import FoldProgram
from opfacade.programs.expression import Node, ordered
from opfacade.programs.fields import Number
from opfacade.programs.guarantees import Math
from opfacade.programs.operations import FUNCTIONS
from opfacade.programs.types import ROUNDED, TYPES
from opfacade.programs.ulps import APPROXIMATE

Statement = tuple[Any, ...]


class HasScalars(Protocol):
    """A program with scalars of the plan."""

    @property
    def scalars(self) -> tuple[Number, ...]: ...


_FP8 = {"f8_e4m3", "f8_e5m2"}
_ROUNDS_FP8 = {f"round_{dtype}" for dtype in _FP8}
_SPECIAL = {"inf": "inf", "-inf": "neg_inf", "nan": "nan", "-0": "neg_zero"}
_HEAVY, _HEAVY_F64 = 16, 256  # approximate instructions of a function; for f64 more, because of the registers
_REDUCED = {"sin": 100, "cos": 100, "tan": 120}  # functions that reduce large angles, which takes registers
_APPROXIMATE = 6  # instructions of an approximated function


def math_of(outputs: Sequence[tuple[str, Node]]) -> Math:
    """Approximate if all inexact results are stored in 16 or 8 bits, whose rounding is far larger than the error of the
    instructions."""
    rough = [dtype for dtype, value in outputs if not value.exact]
    return "approx" if rough and all(dtype in ROUNDED for dtype in rough) else "device"


def statements(values: Sequence[Node], inputs: Sequence[str], scalars: Sequence[str], math: Math) -> tuple[Statement, ...]:
    """One statement per node; its arguments are indices of earlier statements. inputs, scalars: their names, in order."""
    nodes = ordered(values)
    place = {node: i for i, node in enumerate(nodes)}
    return tuple(statement(node, place, {"input": inputs, "scalar": scalars}, math) for node in nodes)


def statement(node: Node, place: Mapping[Node, int], names: Mapping[str, Sequence[str]], math: Math) -> Statement:
    args = tuple(place[arg] for arg in node.args)
    if node.kind == "constant":
        return ("constant", node.type, _number(node))
    if node.kind in ("input", "scalar"):
        return (node.kind, node.type, names[node.kind].index(node.data))
    if node.kind in ("coord", "extent"):
        return (node.kind, node.type, node.data)
    if node.kind == "stage":
        return ("stage", node.type, *node.data)
    if node.kind == "read":
        name, outside = node.data
        return ("read", node.type, names["input"].index(name), outside, args)
    if node.op in TYPES and node.op != node.args[0].type:
        return ("cast", node.type, *args)
    return (_function(node, math), node.type, *args)


def _function(node: Node, math: Math) -> str:
    """The C++ function of an operation."""
    if not _is_approximated(node, math):
        return f"{node.op}_"
    return "div_plain_approx_" if node.op == "div" and is_plain_divisor(node.args[1]) else f"{node.op}_approx_"


def _number(node: Node) -> Any:
    if isinstance(node.data, str):
        return _SPECIAL[node.data]
    return node.data % 2**64 if node.type[0] in "iu" else node.data


def numbers(program: HasScalars) -> tuple[float, ...]:
    """The scalars of a program as arguments of a call: integers as signed 64-bit numbers."""
    found = []
    for number in program.scalars:
        whole = number.type not in ("f32", "f64")
        value = int(number.value) if whole else float(number.value)
        found.append(value - 2**64 if whole and value >= 2**63 else value)
    return tuple(found)


def arguments(fold: FoldProgram) -> tuple[float, ...]:
    """The extents of all axes of a fold, then its scalars."""
    return (*fold.shape, *numbers(fold))


def fp8_reasons(target: Target, dtypes: Iterable[str], values: Iterable[Node]) -> Iterator[Reason]:
    """Refuse hardware without fp8 conversions where a tensor has such elements, or an operation rounds to them."""
    refused = tuple(support.fp8_reasons(target, "f8"))
    if refused and (_FP8.intersection(dtypes) or any(node.op in _ROUNDS_FP8 for node in ordered(values))):
        yield from refused


def weight(values: Sequence[Node], math: Math) -> int:
    """The approximate number of instructions per element."""
    nodes = [node for node in ordered(values) if node.kind in ("apply", "read")]
    return sum(_instructions(node, math) for node in nodes)


def _is_approximated(node: Node, math: Math) -> bool:
    return math == "approx" and node.op in APPROXIMATE and not node.exact and node.type == "f32"


def calls_functions(values: Sequence[Node], math: Math) -> bool:
    """Whether an element calls a function of the device library."""
    return any(node.kind == "apply" and node.op in FUNCTIONS and not _is_approximated(node, math) for node in ordered(values))


def _instructions(node: Node, math: Math) -> int:
    if _is_approximated(node, math):
        return _APPROXIMATE
    if node.op in _REDUCED and node.type != "f64":
        return _REDUCED[node.op]
    if node.op in FUNCTIONS or node.op in ("div", "rem", "mod"):
        return _HEAVY_F64 if node.type == "f64" else _HEAVY
    return 1


def is_placed(values: Sequence[Node]) -> bool:
    """Whether the program uses positions."""
    return any(node.kind in ("coord", "extent", "read") for node in ordered(values))
