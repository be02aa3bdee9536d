"""elementwise: a Python function of expressions as an operator on tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import DTYPES
from opfacade.errors import ArgumentError
from opfacade.plan import Plan
from opfacade.programs.expression import Node, scalar, value
from opfacade.programs.fields import Input, Number, Output
from opfacade.programs.types import storable, widened

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Elementwise:
    """A traced function. Called with tensors of one shape, and numbers, which are scalars of the plan, it returns new tensors;
    `descriptor` gives the descriptor of such a call. The function is run once for each tuple of types, on expressions."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    plan: type[Plan[Any]]
    kind: Any  # the type of the descriptor, whose constructor takes its fields
    _values: dict[tuple[str, ...], tuple[Node, ...]] = field(default_factory=dict, compare=False, repr=False)
    _plans: dict[tuple[Any, ...], Plan[Any]] = field(default_factory=dict, compare=False, repr=False)

    def values(self, types: tuple[str, ...]) -> tuple[Node, ...]:
        """The results for arguments of some dtypes; "number" is a scalar. Raises DescriptorError for what has no meaning."""
        if types not in self._values:
            pairs = zip(self.names, types, strict=True)
            leaves = [scalar(name) if kind == "number" else value(name, widened(kind)) for name, kind in pairs]
            made = self.function(*leaves)
            self._values[types] = made if isinstance(made, tuple) else (made,)
        return self._values[types]

    def descriptor(self, shape: tuple[int, ...], dtypes: Mapping[str, str], **numbers: float) -> Any:
        """The map of this function. dtypes: of the tensors, by the names of the arguments; numbers: of the other arguments.

        A result has the dtype of the first tensor whose elements it can be stored as, else its own type. Results are named
        out, or out0, out1 and so on.
        """
        types = tuple(dtypes.get(name, "number") for name in self.names)
        values = self.values(types)
        names = ["out"] if len(values) == 1 else [f"out{i}" for i in range(len(values))]
        inputs = tuple(Input(name=name, dtype=dtypes[name]) for name in self.names if name in dtypes)
        outputs = tuple(
            Output(name=name, dtype=_dtype(dtypes, node), value=node) for name, node in zip(names, values, strict=True)
        )
        scalars = tuple(Number(name=name, value=float(numbers[name])) for name in self.names if name in numbers)
        return self.kind(shape=tuple(shape), inputs=inputs, scalars=scalars, outputs=outputs)

    def __call__(self, *args: Tensor | float) -> Any:
        """New tensors. Raises ArgumentError where tensors differ in shape: nothing is broadcast in silence."""
        import torch

        tensors = {name: arg for name, arg in zip(self.names, args, strict=True) if isinstance(arg, torch.Tensor)}
        numbers = {name: arg for name, arg in zip(self.names, args, strict=True) if not isinstance(arg, torch.Tensor)}
        shape = _one_shape(tensors)
        key = (shape, tuple((name, t.dtype) for name, t in tensors.items()), tuple(numbers.items()))
        plan = self._plans.get(key)
        if plan is None:
            dtypes = {name: _NAMES[str(t.dtype).removeprefix("torch.")] for name, t in tensors.items()}
            plan = self._plans[key] = self.plan.select(self.descriptor(shape, dtypes, **numbers))
        first = next(iter(tensors.values()))
        made = [
            torch.empty(shape, dtype=getattr(torch, DTYPES[one.dtype].torch), device=first.device) for one in _outputs(plan)
        ]
        plan.run(self.kind.args_type(inputs=list(tensors.values()), outputs=made))
        return made[0] if len(made) == 1 else tuple(made)


_NAMES = {facts.torch: name for name, facts in DTYPES.items()}


def _outputs(plan: Plan[Any]) -> tuple[Output, ...]:
    found: Any = plan.descriptor
    outputs: tuple[Output, ...] = found.outputs
    return outputs


def _dtype(dtypes: Mapping[str, str], node: Node) -> Any:
    return next((dtype for dtype in dtypes.values() if storable(dtype) == node.type), node.type)


def _one_shape(tensors: Mapping[str, Tensor]) -> tuple[int, ...]:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) != 1:
        told, hint = str(shapes)[:200], "Expand them: nothing is broadcast in silence."
        message = f"map.run: tensors expected one shape, got {told}. {hint} [OPF-A045]"
        raise ArgumentError(message, code="OPF-A045", op="map", stage="run", hint=hint)
    return next(iter(shapes.values()))
