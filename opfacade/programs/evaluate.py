"""Evaluates a program in torch: exact nodes bit for bit, other nodes in their own type or in f64.

Integers of every type are carried as int64 (u64 as its bit pattern) and wrapped to their range after each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opfacade.programs import integers, reals
from opfacade.programs.ball import aligned
from opfacade.programs.node import SPECIAL, Node
from opfacade.programs.operations import COMPARISONS
from opfacade.programs.types import FLOATS, INTEGERS, LARGEST, SATURATING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Values:
    """Values of the leaves: tensors that broadcast to the result.

    leaves: keyed by (kind, data) of a node: ("input", name), ("scalar", name), ("coord", axis), ("extent", axis), ("stage",
    (index, part)). For a read, ("input", name) is the whole tensor.
    """

    leaves: Mapping[tuple[str, Any], Tensor]
    device: Any = "cpu"

    def of(self, node: Node, real: torch.dtype | None) -> Tensor:
        """The value of a leaf in its type, or for a float in `real`, which keeps additional digits of the leaf."""
        found = self.leaves[node.kind, node.data]
        return carried(found, node.type) if real is None or node.type not in FLOATS else found.to(real)


@dataclass
class Evaluation:
    """One evaluation; each node is computed once.

    real: the float dtype of inexact nodes; None: every node in its own type. everywhere: exact floats are computed in `real`
    too, unless an integer or bool depends on them.
    """

    values: Values
    real: torch.dtype | None = None
    everywhere: bool = False
    _own: dict[Node, Tensor] = field(default_factory=dict)
    _real: dict[Node, Tensor] = field(default_factory=dict)

    def __call__(self, node: Node) -> Tensor:
        """The value of a node: floats in their own type or in `real`, integers as int64, bools as bool."""
        return self.own(node) if self.real is None else self.in_real(node)

    def own(self, node: Node) -> Tensor:
        """The value in the node's own type: exact nodes as on any machine, inexact nodes as on this machine."""
        if node not in self._own:
            self._own[node] = self._made(node, self.own, None)
        return self._own[node]

    def in_real(self, node: Node) -> Tensor:
        if node.exact and not (self.everywhere and node.type in FLOATS):
            found = self.own(node)
            return found.to(self.real) if node.type in FLOATS else found
        if node not in self._real:
            self._real[node] = self._made(node, self.in_real, self.real)
        return self._real[node]

    def _made(self, node: Node, inner: Callable[[Node], Tensor], real: torch.dtype | None) -> Tensor:
        if node.kind == "apply":
            return applied(node.op, node, [inner(arg) for arg in node.args], real)
        if node.kind == "read":
            return self._read(node, inner)
        if node.kind != "constant":
            return self.values.of(node, real)
        value = _constant(node, self.values.device)
        return value if real is None or node.type not in FLOATS else value.to(real)

    def _read(self, node: Node, inner: Callable[[Node], Tensor]) -> Tensor:
        import torch

        name, outside = node.data
        source = carried(self.values.leaves["input", name], node.type)
        places = [self.own(arg) for arg in (node.args[:-1] if outside == "fill" else node.args)]
        places = aligned(*places)
        beyond = torch.zeros_like(places[0], dtype=torch.bool)
        for axis, size in enumerate(source.shape):
            beyond |= (places[axis] < 0) | (places[axis] >= size)
            places[axis] = _within(places[axis], size, outside)
        if 0 in source.shape:  # as in the kernel: no nearest position exists
            return inner(node.args[-1]).expand(beyond.shape) if outside == "fill" else source.new_zeros(beyond.shape)
        found = source[tuple(places)]
        return torch.where(beyond, inner(node.args[-1]).to(found.dtype), found) if outside == "fill" else found


def _within(place: Tensor, size: int, outside: str) -> Tensor:
    """A valid index of the axis for any integer, without overflow."""
    import torch

    if size == 0:
        return place.clamp(0, 0)
    if outside == "wrap":
        return torch.remainder(place, size)
    if outside == "reflect":
        period = max(1, 2 * size - 2)
        rest = torch.remainder(place, period)
        return torch.minimum(rest, period - rest) if size > 1 else place.clamp(0, 0)
    return place.clamp(0, size - 1)


def torch_type(type: str) -> torch.dtype:
    """The torch dtype that carries a type."""
    import torch

    if type in INTEGERS:
        return torch.int64
    names: dict[str, torch.dtype] = {"bool": torch.bool, "f32": torch.float32, "f64": torch.float64}
    return names[type]


def carried(tensor: Tensor, type: str) -> Tensor:
    """An operand widened to its computation type."""
    import torch

    if type == "u64" and tensor.dtype == torch.uint64:
        return tensor.view(torch.int64)
    if type == "f32" and tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point:
        return tensor.float()
    return tensor.to(torch_type(type))


def stored(value: Tensor, dtype: str) -> Tensor:
    """A computed value as an element of a tensor, rounded once; also for expected values in f64."""
    import torch

    from opfacade.core.dtypes import torch_dtype

    kind = torch_dtype(dtype)
    if dtype == "u64":
        return value.view(torch.uint64)
    return narrowed(value, dtype).to(kind) if dtype in LARGEST else value.to(kind)


def narrowed(value: Tensor, dtype: str) -> Tensor:
    """The value rounded as in a store, in the dtype of `value`: to nearest, or for f8_e8m0 up."""
    from opfacade.core.dtypes import torch_dtype

    if dtype == "f8_e8m0":
        return reals.power_above(value)
    if dtype in SATURATING:
        value = value.clamp(-LARGEST[dtype], LARGEST[dtype])
    if value.dtype.itemsize == 8 and dtype not in ("f32", "f64"):
        value = reals.odd(value)  # converting to f32 first would round twice
    return value.to(torch_dtype(dtype)).to(value.dtype)


def _constant(node: Node, device: torch.device | str) -> Tensor:
    import torch

    value: Any = SPECIAL[node.data] if isinstance(node.data, str) else node.data
    if node.type == "u64" and value >= 2**63:
        value -= 2**64
    return torch.tensor(value, dtype=torch_type(node.type), device=device)


def applied(op: str, node: Node, args: list[Tensor], real: torch.dtype | None) -> Tensor:
    """Applies the operation of a node to carried values. real: the dtype of a float result; None: the node's."""
    import torch

    given = node.args[-1].type
    if op == "select":
        condition, a, b = args
        return torch.where(condition, a, b)
    if op == node.type and op != node.args[0].type:
        return _cast(args[0], node.args[0].type, node.type, real)
    if op.startswith("round_") and op != "round_away":
        return narrowed(args[0], op.removeprefix("round_"))
    if op in COMPARISONS and given == "u64":
        return integers.compared(op, *args)
    if op == "bits":
        return integers.philox(*args)
    if op in ("as_bits", "from_bits"):
        return integers.reinterpreted(args[0].to(torch_type(given)), node.type)
    if given in INTEGERS:
        return integers.OPERATIONS[op](*args) if op in COMPARISONS else integers.wrapped(op, given, args)
    return reals.OPERATIONS[op](*args)


def _cast(value: Tensor, source: str, target: str, real: torch.dtype | None) -> Tensor:
    if target == "bool":
        return value != 0
    if target in FLOATS:
        wide = real or torch_type(target)
        return integers.as_float(value, wide) if source == "u64" else value.to(wide)
    if source in FLOATS:
        return integers.saturated(value, target)
    return integers.in_range(value.to(torch_type(target)), target)
