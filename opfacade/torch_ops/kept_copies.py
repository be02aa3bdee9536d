"""Copies around ops that overwrite their operands, which inductor would wrongly remove.

Inductor removes copies from the functional graph, in which no tensor changes, and then lets an op overwrite its operand if no
later node reads the operand. It does not check whether the op reads the same memory as another operand. It also does not check
whether an earlier value of a graph input is returned, or stored elsewhere, after the last value of that input has been written
back (https://github.com/pytorch/pytorch/issues/198031). So the values for these reads are copied, after the pass that removes
copies and before the pass that reuses memory (`inductor.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opfacade.core.overlap import Place, columns_apart, places_overlap

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Node


def protect(call: Node) -> None:
    """Inserts copies around a call that overwrites operands, for values that inductor would read too late."""
    _copy_own_reads(call)
    for place, base in _overwritten(call).items():
        given = _input_of(base)
        if given is not None:
            results = [u for u in call.users if u.target is operator.getitem and u.args[1] == place]
            for value in _with_views([base, *results]):
                _copy_late_reads(value, given)


def _overwritten(call: Node) -> dict[int, Node]:
    """The tensors that a call overwrites, by the index of the new value among the call's results."""
    given: dict[str, Any] = call.kwargs
    if "_all_bases" in given:
        return dict(enumerate(given["_all_bases"], 1))
    return {at: given[name] for at, name in enumerate(_names(call, written=True), 1) if given[name] is not None}


def _names(call: Node, written: bool) -> list[str]:
    """The names of arguments that the op overwrites, or if `written` is false, only reads."""
    op: Any = call.args[0]
    return [a.name for a in op._schema.arguments if (a.alias_info is not None and a.alias_info.is_write) is written]


def _copy_own_reads(call: Node) -> None:
    """Copies each tensor that the call reads if it may overlap with a tensor that the call writes."""
    written = _written_views(call)
    for name in _names(call, written=False):
        read = call.kwargs.get(name)
        if isinstance(read, torch.fx.Node) and any(_may_overlap(_value(read), view) for view in written):
            call.update_kwarg(name, _copied(read))


def _written_views(call: Node) -> list[Tensor]:
    """The views that the call overwrites, as fake tensors."""
    if "_all_bases" not in call.kwargs:
        return [_value(base) for base in _overwritten(call).values()]
    from torch._higher_order_ops.auto_functionalize import get_mutable_args, read_view_information_from_args

    op: Any = call.args[0]
    given: Any = dict(torch.fx.map_arg(dict(call.kwargs), _value))
    bases = given["_all_bases"]
    views = read_view_information_from_args(*get_mutable_args(op), given, bases)
    return [view.regenerate_view(bases) for view in views.values() if view is not None]


def _value(node: Node) -> Tensor:
    found: Tensor = node.meta["val"]
    return found


def _may_overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two fake tensors may share an element. The number of rows may be a symbol; other symbols count as an overlap."""
    if not isinstance(a, torch.Tensor) or _storage(a) != _storage(b):
        return False
    known = all(isinstance(n, int) for t in (a, b) for n in (*t.shape[1:], *t.stride(), t.storage_offset()))
    if not known:
        return True
    places = _place(a), _place(b)
    whole = all(isinstance(n, int) for t in (a, b) for n in t.shape)
    return places_overlap(*places) if whole else not columns_apart(*places)


def _place(t: Tensor) -> Place:
    return Place(t.shape, t.stride(), int(t.storage_offset()) * t.element_size(), t.element_size())


def _storage(t: Tensor) -> int:
    found: int = t.untyped_storage()._cdata
    return found


def _shares(node: Node, other: object) -> bool:
    """Whether two nodes share a storage."""
    tensors = [n.meta.get("val") if isinstance(n, torch.fx.Node) else None for n in (node, other)]
    a, b = tensors
    return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and _storage(a) == _storage(b)


def _input_of(node: Node) -> Node | None:
    """The graph input whose memory this value may occupy, found through views and overwriting calls; None if there is none."""
    while node.op == "call_function":
        source = node.args[0] if node.args else None
        if not isinstance(source, torch.fx.Node):
            return None
        found = source if _shares(node, source) else _overwritten_as(node, source)
        if found is None:
            return None
        node = found
    return node


def _overwritten_as(node: Node, call: Node) -> Node | None:
    """The tensor that a call overwrites with this result."""
    place: Any = node.args[1] if node.target is operator.getitem and _is_call(call) else None
    return None if place is None else _overwritten(call).get(place)


def _is_call(node: Node) -> bool:
    return node.target in (torch.ops.higher_order.auto_functionalized, torch.ops.higher_order.auto_functionalized_v2)


def _with_views(values: Sequence[Node]) -> Iterator[Node]:
    for value in values:
        yield value
        yield from _with_views([user for user in value.users if user.op == "call_function" and _shares(user, value)])


def _copy_late_reads(value: Node, given: Node) -> None:
    """Copies `value` for uses that return it or store it in another input, because they read it after `given` is written
    back."""
    late = [user for user in list(value.users) if _is_late(user, value, given)]
    if late:
        copy = _copied(value)
        for user in late:
            user.replace_input_with(value, copy)


def _is_late(user: Node, value: Node, given: Node) -> bool:
    if user.op == "output":
        return value.op == "call_function" and not _is_returned_view(user, value)
    return user.target is torch.ops.aten.copy_.default and user.args[0] is not given and user.args[1] is value


def _is_returned_view(output: Node, value: Node) -> bool:
    """Whether the caller gets a view of the input itself. AOTAutograd creates this view from the input."""
    context = torch._guards.TracingContext.try_get()
    known = context.fw_metadata if context is not None else None
    if known is None:
        return False
    first, results = known.num_mutated_inp_runtime_indices, list(output.args[0])  # type: ignore[arg-type]
    kinds = [info.output_type.name for info in known.output_info]
    places = [at - first for at, result in enumerate(results) if result is value]
    return all(0 <= at < len(kinds) and kinds[at] in ("alias_of_input", "is_input") for at in places)


def _copied(value: Node) -> Node:
    """A copy of a value, inserted directly after the value."""
    graph = value.graph
    at = value if value.op == "call_function" else [n for n in graph.nodes if n.op == "placeholder"][-1]
    with graph.inserting_after(at):
        copy = graph.call_function(torch.ops.aten.clone.default, (value,))
    copy.meta["val"] = _value(value).clone()
    return copy
