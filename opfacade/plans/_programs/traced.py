"""elementwise: converts a Python function of expressions to an operator on tensors."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opfacade.base.short_repr import shown
from opfacade.core.dtypes import DTYPES
from opfacade.errors import ArgumentError, Issue, from_issues
from opfacade.plan import Plan
from opfacade.programs.expression import Node, scalar, value
from opfacade.programs.fault import Fault
from opfacade.programs.fields import Input, Number, Output, as_number
from opfacade.programs.types import Type, storable, widened

if TYPE_CHECKING:
    from torch import Tensor

REMEMBERED = 1024  # cached descriptors of calls, per function


@dataclass(frozen=True)
class Elementwise:
    """A traced function. Called with tensors of equal shape and with numbers, which become scalars of the plan, it returns new
    tensors; `descriptor` returns the descriptor of such a call. The function is run on expressions once per tuple of types. A
    number is an f32; if the function is invalid with this type, the function is run again with the common type of the tensors.
    """

    function: Callable[..., Any]
    names: tuple[str, ...]
    plan: type[Plan[Any]]
    kind: Any  # the descriptor type
    _values: dict[tuple[str, ...], tuple[tuple[Node, ...], Type]] = field(default_factory=dict, compare=False, repr=False)
    _calls: dict[tuple[Any, ...], Any] = field(default_factory=dict, compare=False, repr=False)

    def values(self, types: tuple[str, ...]) -> tuple[Node, ...]:
        """The results for arguments of some dtypes; "number" is a scalar. Raises DescriptorError for an invalid expression."""
        return self._traced(types)[0]

    def descriptor(self, shape: tuple[int, ...], dtypes: Mapping[str, str], **numbers: float) -> Any:
        """The map of this function. dtypes: of the tensors, by the names of the arguments; numbers: of the other arguments.

        A result has the dtype of the first tensor that can store it, otherwise its own type. Results are named out, or out0,
        out1 and so on. Raises TypeError if an argument is missing, unknown, or given both as a tensor and as a number."""
        for name, dtype in dtypes.items():
            if dtype not in DTYPES:
                raise Fault(f".dtypes.{name}", f"one of {', '.join(DTYPES)}", dtype)
        both = sorted(set(dtypes) & set(numbers))
        if both:
            raise TypeError(f"{self._told}: {both[0]} is a tensor or a number, not both")
        given = self._with_defaults({**dtypes, **numbers})
        values, kind = self._traced(tuple(dtypes.get(name, "number") for name in self.names))
        names = ["out"] if len(values) == 1 else [f"out{i}" for i in range(len(values))]
        inputs = tuple(Input(name=name, dtype=dtypes[name]) for name in self.names if name in dtypes)
        outputs = tuple(
            Output(name=name, dtype=_dtype(dtypes, node), value=node) for name, node in zip(names, values, strict=True)
        )
        told = {name: self._number(name, given[name]) for name in self.names if name not in dtypes}
        scalars = tuple(Number(name=name, value=as_number(number, kind), type=kind) for name, number in told.items())
        extents = tuple(shape) if isinstance(shape, (list, tuple)) else shape
        return self.kind(shape=extents, inputs=inputs, scalars=scalars, outputs=outputs)

    def __call__(self, /, *args: Tensor | float, **named: Tensor | float) -> Any:
        """Returns new tensors. Raises ArgumentError if tensors differ in shape (nothing is broadcast implicitly), and TypeError
        if the arguments do not match the function's signature."""
        import torch

        given = self._bound(args, named)
        tensors = {name: arg for name, arg in given.items() if isinstance(arg, torch.Tensor)}
        numbers = {name: self._number(name, arg) for name, arg in given.items() if name not in tensors}
        shape = _one_shape(tensors)
        descriptor = self._of_call(shape, {name: tensor.dtype for name, tensor in tensors.items()}, numbers)
        plan, first = self.plan.select(descriptor), next(iter(tensors.values()))
        outputs: tuple[Output, ...] = descriptor.outputs
        made = [torch.empty(shape, dtype=getattr(torch, DTYPES[one.dtype].torch), device=first.device) for one in outputs]
        plan.run(self.kind.args_type(inputs=list(tensors.values()), outputs=made))
        return made[0] if len(made) == 1 else tuple(made)

    def _of_call(self, shape: tuple[int, ...], dtypes: Mapping[str, Any], numbers: Mapping[str, float]) -> Any:
        """The cached descriptor of a call; `select` caches its plan for the current device."""
        told = tuple((name, number, number == 0 and math.copysign(1, number) < 0) for name, number in numbers.items())
        key = (shape, tuple(dtypes.items()), told)
        found = self._calls.get(key)
        if found is None:
            found = self.descriptor(shape, {name: _name_of(name, dtype) for name, dtype in dtypes.items()}, **numbers)
            if len(self._calls) >= REMEMBERED:
                self._calls.clear()
            self._calls[key] = found
        return found

    def _traced(self, types: tuple[str, ...]) -> tuple[tuple[Node, ...], Type]:
        """The results, and the type of numbers in them."""
        if types not in self._values:
            kinds: set[Type] = {widened(kind) for kind in types if kind != "number"}
            own = next(iter(kinds)) if len(kinds) == 1 and "number" in types else "f32"
            try:
                self._values[types] = (self._run(types, "f32"), "f32")
            except Fault:
                if own == "f32":
                    raise
                self._values[types] = (self._run(types, own), own)
        return self._values[types]

    def _run(self, types: tuple[str, ...], number: Type) -> tuple[Node, ...]:
        pairs = zip(self.names, types, strict=True)
        leaves = [scalar(name, number) if kind == "number" else value(name, widened(kind)) for name, kind in pairs]
        made = self.function(*leaves)
        found = made if isinstance(made, tuple) and made else (made,)
        for one in found:
            if not isinstance(one, Node):
                raise Fault(".result", f"an expression or a tuple of expressions from {self._told}", shown(one), _meant(one))
        return found

    @property
    def _told(self) -> str:
        return f"{getattr(self.function, '__name__', 'function')}({', '.join(self.names)})"

    def _bound(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments by name, in order, including the function's defaults."""
        if not named and len(args) == len(self.names):
            return dict(zip(self.names, args, strict=True))
        try:
            bound = inspect.signature(self.function).bind(*args, **named)
        except TypeError as error:
            raise TypeError(f"{self._told}: {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def _with_defaults(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Arguments by name, including the function's defaults."""
        told = {name: one.default for name, one in inspect.signature(self.function).parameters.items()}
        found = {name: one for name, one in told.items() if one is not inspect.Parameter.empty} | dict(given)
        wrong = {"unknown": set(found) - set(self.names), "missing": set(self.names) - set(found)}
        for kind, names in wrong.items():
            if names:
                raise TypeError(f"{self._told}: {kind} arguments: {', '.join(sorted(names))}")
        return found

    def _number(self, name: str, given: object) -> float:
        """An argument that is not a tensor, as a Python number; numpy numbers are accepted."""
        if isinstance(given, (int, float)):
            return given
        with suppress(TypeError, ValueError):
            if hasattr(given, "__index__"):
                return operator.index(given)
            if hasattr(given, "__float__"):
                return float(given)
        raise TypeError(f"{self._told}: {name} is a tensor or a number, not {shown(given)}")


_NAMES = {facts.torch: name for name, facts in DTYPES.items()}


def _meant(made: object) -> str:
    """A hint for a result that is not an expression."""
    if isinstance(made, bool):
        return "Write eq(x, y) or ne(x, y): == and != say whether two expressions are one."
    if isinstance(made, (int, float)):
        return f'Write constant({made}, "f32").'
    return "Return a tuple." if isinstance(made, list) else ""


def _name_of(argument: str, dtype: str) -> str:
    """The element type of a torch dtype."""
    name = str(dtype).removeprefix("torch.")
    if name not in _NAMES:
        issue = Issue("OPF-A010", argument, f"one of {', '.join(_NAMES)}", name, kind="DTypeError")
        raise from_issues("map", "run", [issue])
    return _NAMES[name]


def _dtype(dtypes: Mapping[str, str], node: Node) -> Any:
    return next((dtype for dtype in dtypes.values() if storable(dtype) == node.type), node.type)


def _one_shape(tensors: Mapping[str, Tensor]) -> tuple[int, ...]:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) != 1:
        told, hint = str(shapes)[:200], "Expand them: nothing is broadcast in silence."
        message = f"map.run: tensors expected one shape, got {told}. {hint} [OPF-A045]"
        raise ArgumentError(message, code="OPF-A045", op="map", stage="run", hint=hint)
    return next(iter(shapes.values()))
