"""A small typed expression language over attention scores and positions: data, not code. See docs/variants.md.

Three types: f32, i32, bool. The bits of an *exact* expression are defined: it contains only positions, constants, parameters
and correctly rounded operations. exp2, log2, tanh and the score itself are not exact, and discontinuous operations (a
comparison, floor, a conversion to i32) accept only exact arguments. So masks and branches are the same on all machines, and all
other operations are continuous with a bounded error (opfacade.testing.families.attention.expression_bound)."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator

from opfacade.core.model import FromList, Model, contradiction
from opfacade.errors import Issue, from_issues
from opfacade.plans._attention.infix import infix
from opfacade.programs.operations import OPERATIONS

Type = Literal["f32", "i32", "bool"]
Per = Literal["head", "row", "key"]
InputName = Literal["score", "query", "q_pos", "kv_pos", "q_len", "kv_len", "head", "kv_head"]
Op = Literal[
    "add", "sub", "mul", "min", "max", "minimum", "maximum", "neg", "abs", "div", "floordiv", "mod", "lt", "le", "gt", "ge",
    "eq", "ne", "and", "or", "not", "select", "f32", "i32", "floor", "sqrt", "exp2", "log2", "tanh",
]  # fmt: skip
Name = Annotated[str, Field(pattern=r"\A[A-Za-z][A-Za-z0-9_]{0,31}\z")]

MAX_NODES, MAX_DEPTH = 128, 16
PARAMETER_TYPE: dict[Per, Type] = {"head": "f32", "row": "i32", "key": "i32"}
_FLOATS = ("score", "query")
_INT32 = 2**31


def _no_operator(mark: str, instead: str) -> NoReturn:
    issue = Issue("OPF-D040", mark, "no use between expressions", "one", f"Use {instead}.", kind="ArgumentTypeError")
    raise from_issues("expression", "", [issue])


# A subset of the language of opfacade.programs: attention supports these operations, on these types.
TYPES = ("f32", "i32", "bool")
_NOT_HERE = {("mod", "f32"), ("f32", "bool"), ("i32", "bool"), ("and", "i32"), ("or", "i32"), ("not", "i32")}


def _in_scope(op: str) -> dict[tuple[Type, ...], Type]:
    """Argument types of an operation, each with its result type."""
    known: Any = OPERATIONS[op].signatures
    here = [args for args in known if {*args, known[args]} <= set(TYPES) and (op, args[0]) not in _NOT_HERE]
    return {args: known[args] for args in sorted(here, key=lambda args: TYPES.index(args[-1]))}


SIGNATURES = {op: _in_scope(op) for op in get_args(Op)}
INEXACT = tuple(op for op in SIGNATURES if not OPERATIONS[op].exact)


class Facts(NamedTuple):
    """Properties of an expression that the checks need."""

    type: Type
    exact: bool
    nodes: int
    depth: int


class Node(Model):
    """Base of expressions. Python's operators build larger expressions; a number becomes a constant with the type of the other
    operand."""

    def facts(self) -> Facts:
        raise NotImplementedError

    def walk(self) -> Iterator[tuple[str, Node]]:
        """(path, node) for this expression and all its subexpressions."""
        yield "", self

    def __str__(self) -> str:
        return infix(self)

    __repr__ = __str__

    def same(self, other: object) -> bool:
        """Whether another expression is equal; `==` is refused, because it looks like a comparison in an expression."""
        return self is other or (type(self) is type(other) and self.canonical_json() == other.canonical_json())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Node, int, float)):
            _no_operator("==", "equal(a, b)")
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        if isinstance(other, (Node, int, float)):
            _no_operator("!=", "not_equal(a, b)")
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.canonical_json())

    def __pow__(self, other: object) -> NoReturn:
        _no_operator("**", "a * a, or exp2(b * log2(a)) of positive numbers")

    def __bool__(self) -> NoReturn:
        hint = "Use select, &, | and ~, and one comparison at a time."
        issue = Issue(
            "OPF-D040",
            "bool",
            "no use as a bool, because an expression has no truth value",
            "one",
            hint,
            kind="ArgumentTypeError",
        )
        raise from_issues("expression", "", [issue])

    def __add__(self, other: Node | float) -> Apply:
        return apply("add", self, other)

    def __radd__(self, other: float) -> Apply:
        return apply("add", other, self)

    def __sub__(self, other: Node | float) -> Apply:
        return apply("sub", self, other)

    def __rsub__(self, other: float) -> Apply:
        return apply("sub", other, self)

    def __mul__(self, other: Node | float) -> Apply:
        return apply("mul", self, other)

    def __rmul__(self, other: float) -> Apply:
        return apply("mul", other, self)

    def __truediv__(self, other: Node | float) -> Apply:
        return apply("div", self, other)

    def __rtruediv__(self, other: float) -> Apply:
        return apply("div", other, self)

    def __floordiv__(self, other: Node | int) -> Apply:
        return apply("floordiv", self, other)

    def __mod__(self, other: Node | int) -> Apply:
        return apply("mod", self, other)

    def __neg__(self) -> Apply:
        return apply("neg", self)

    def __abs__(self) -> Apply:
        return apply("abs", self)

    def __lt__(self, other: Node | float) -> Apply:
        return apply("lt", self, other)

    def __le__(self, other: Node | float) -> Apply:
        return apply("le", self, other)

    def __gt__(self, other: Node | float) -> Apply:
        return apply("gt", self, other)

    def __ge__(self, other: Node | float) -> Apply:
        return apply("ge", self, other)

    def __and__(self, other: Node | bool) -> Apply:
        return apply("and", self, other)

    def __or__(self, other: Node | bool) -> Apply:
        return apply("or", self, other)

    def __invert__(self) -> Apply:
        return apply("not", self)


class Constant(Node):
    """A finite number. f32: rounded to nearest, and -0 becomes 0; i32: must be in range."""

    kind: Literal["constant"] = Field(default="constant", description="Kind of the node.")
    type: Type = Field(description="Type of the value.")
    value: bool | int | float = Field(description="A number in the range of its type.")

    @field_validator("value")
    @classmethod
    def _of_its_type(cls, value: float, info: ValidationInfo) -> float:
        kind = info.data.get("type")
        if isinstance(value, bool) != (kind == "bool") or (kind == "i32" and not isinstance(value, int)):
            raise ValueError(f"a value of type {kind}")
        if kind == "i32" and not -_INT32 <= value < _INT32:
            raise ValueError("an i32 in -2^31 .. 2^31 - 1")
        return rounded(value) if kind == "f32" else value

    def facts(self) -> Facts:
        return Facts(self.type, True, 1, 1)


class Input(Node):
    """An input of the call: score (f32), query (f32, an element of q), positions, lengths and heads (i32)."""

    kind: Literal["input"] = Field(default="input", description="Kind of the node.")
    name: InputName = Field(description="Its name.")

    def facts(self) -> Facts:
        return Facts("f32" if self.name in _FLOATS else "i32", self.name != "score", 1, 1)


class Parameter(Node):
    """An operand of the call: an f32 for each query head, an i32 for each row of q, or an i32 for each key."""

    kind: Literal["parameter"] = Field(default="parameter", description="Kind of the node.")
    name: Name = Field(description="Its name.")
    per: Per = Field(description="Whether there is one value for each query head (f32), row of q (i32) or key (i32).")

    def facts(self) -> Facts:
        return Facts(PARAMETER_TYPE[self.per], True, 1, 1)


class Apply(Node):
    """An operation on expressions."""

    kind: Literal["apply"] = Field(default="apply", description="Kind of the node.")
    op: Op = Field(description="The operation.")
    args: Annotated[tuple[Expression, ...], FromList, Field(min_length=1, max_length=3)] = Field(
        description="One to three expressions."
    )

    @model_validator(mode="after")
    def _typed(self) -> Apply:
        given = [arg.facts() for arg in self.args]
        types = tuple(arg.type for arg in given)
        if types not in SIGNATURES[self.op]:
            allowed = " or ".join(f"({', '.join(types)})" for types in SIGNATURES[self.op])
            raise contradiction("", f"{self.op} of {allowed}, not of ({', '.join(types)})", self, self._conversion(types))
        facts = self.facts()
        if (facts.type != "f32" or self.op == "floor") and not all(arg.exact for arg in given):
            expected = f"{self.op} of what is exact: it jumps, and the score and {', '.join(INEXACT)} have rounding errors"
            hint = "Compare positions, lengths and parameters; of the score use minimum, maximum or a smooth function."
            raise contradiction("", expected, self, hint)
        if facts.nodes > MAX_NODES or facts.depth > MAX_DEPTH:
            raise ValueError(f"at most {MAX_NODES} nodes and depth {MAX_DEPTH}; this has {facts.nodes} and depth {facts.depth}")
        return self

    def _conversion(self, types: tuple[Type, ...]) -> str:
        """A hint if converting the integer arguments to f32 would make the types agree."""
        floats = tuple("f32" if kind == "i32" else kind for kind in types)
        if floats not in SIGNATURES[self.op]:
            return ""
        return f"Use {' and '.join(f'f32({arg})' for arg, kind in zip(self.args, types, strict=True) if kind == 'i32')}."

    def facts(self) -> Facts:
        given = [arg.facts() for arg in self.args]
        exact = self.op not in INEXACT and all(arg.exact for arg in given)
        result = SIGNATURES[self.op][tuple(arg.type for arg in given)]
        return Facts(result, exact, 1 + sum(arg.nodes for arg in given), 1 + max(arg.depth for arg in given))

    def walk(self) -> Iterator[tuple[str, Node]]:
        yield "", self
        for i, arg in enumerate(self.args):
            yield from ((f".args.{i}{path}", node) for path, node in arg.walk())


Expression = Annotated[Constant | Input | Parameter | Apply, Field(discriminator="kind")]
Apply.model_rebuild()


def rounded(value: float) -> float:
    """The f32 nearest to a number, as a float; ValueError if it exceeds the largest f32."""
    try:
        nearest: float = struct.unpack("f", struct.pack("f", float(value)))[0]  # raises struct.error for a huge int
    except OverflowError:
        nearest = math.inf
    if math.isinf(nearest):
        raise ValueError("a finite f32")
    return nearest + 0.0


def apply(op: str, *args: Node | float) -> Apply:
    """Applies `op` to expressions; a number gets the type of the other operand."""
    kinds = [arg.facts().type for arg in args if isinstance(arg, Node)]
    beside = kinds[-1] if kinds else "f32"
    return Apply(op=op, args=tuple(arg if isinstance(arg, Node) else _constant(arg, beside) for arg in args))


def _constant(value: float, beside: Type) -> Constant:
    if isinstance(value, bool):
        return Constant(type="bool", value=value)
    return Constant(type="i32" if isinstance(value, int) and beside == "i32" else "f32", value=value)
