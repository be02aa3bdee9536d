"""The short way of a call: the binding itself holds the operands to the plan (csrc/common/contract.h) and launches.

Python looks only at what a binding cannot see: the type of the bundle, and by torch's own guards that its tensors are plain
ones like those of a call that passed the full check. Whatever the short way does not accept goes the long way, which is
where every message is made: it may refuse too much, and never too little. The quick way (quick.py) is the same with all of it
in the binding, and what it does not accept goes the short way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opfacade.backends.cuda import quick
from opfacade.descriptor import Descriptor, operands_of
from opfacade.memo import getter
from opfacade.operands import TensorSpec, has_memory, room
from opfacade.registry import Operands, ShortWays

if TYPE_CHECKING:
    from torch import Tensor

CUDA = 2  # kDLCUDA
_DONE, _UNKNOWN_ROOM = 0, 2
_MAX_KINDS = 4
_MAX_FIELDS, _MAX_RANK, _MAX_SCALARS = 24, 6, 24  # as in contract.h
# DLPack's type code and bits.
_DTYPES = {
    "f16": (2, 16),
    "bf16": (4, 16),
    "f32": (2, 32),
    "f8_e4m3": (10, 8),
    "f8_e5m2": (12, 8),
    "i32": (0, 32),
    "u8": (1, 8),
}
_INTEGERS = ("i32", "u8")
_LAYOUTS = ("rows", "contiguous", "strided")  # as in contract.h
_ABSENT = (False, False, 0, 0, 1, -1, -1, 1, 0, 0, 0)


def fits(module: Any, descriptor: Descriptor[Any], scalars: tuple[Any, ...]) -> bool:
    """Whether a binding can be told of the operands and scalars of a plan."""
    known = all(spec.dtype in _DTYPES and len(spec.shape) <= _MAX_RANK for spec in operands_of(descriptor).values())
    plain = all(type(scalar) in (int, float, bool) for scalar in scalars)
    few = len(descriptor.args_type.__slots__) <= _MAX_FIELDS and len(scalars) <= _MAX_SCALARS
    return known and plain and few and hasattr(module, "bind")


class Direct:
    """The short ways of one plan, and `learn` for a bundle that passed the full check. operands: as a candidate needs them."""

    __slots__ = ("_guarded", "_kinds", "_present", "_quick_guards", "ways")

    def __init__(
        self,
        module: Any,
        descriptor: Descriptor[Any],
        workspace_bytes: int,
        takes_workspace: bool,
        scalars: tuple[Any, ...],
        device_type: int = CUDA,
        operands: Operands | None = None,
    ) -> None:
        operands = operands_of(descriptor) if operands is None else operands
        fields: tuple[str, ...] = descriptor.args_type.__slots__
        absent = [name for name in fields if name not in operands]
        rules = [number for spec in operands.values() for number in _rule(spec)] + list(_ABSENT) * len(absent)
        contract = (device_type, takes_workspace, workspace_bytes, len(fields), *rules, *scalars)
        self._kinds: list[Callable[..., bool]] = []
        self._quick_guards: list[Callable[..., bool]] = []
        self._present = getter(tuple(operands))
        nested = getter(tuple(f"{name}.is_nested" for name in operands))
        place = _Place(descriptor.args_type, getter((*operands, *absent)), nested, len(operands), workspace_bytes)
        self._guarded = [spec.dtype not in _INTEGERS for spec in operands.values()]
        at_once = quick.make(module, descriptor.args_type, (*operands, *absent), self._guarded, contract)
        self.ways = ShortWays(at_once, _short(place, module.bind(*contract), module.vouch, self._kinds))

    def learn(self, args: Any) -> None:
        """Admit tensors of these types, devices and dispatch keys. Never ones that need a gradient or have no memory."""
        tensors = self._present(args)
        plain = all(has_memory(t) and not t.requires_grad for t in tensors)
        if plain and not any(same(*tensors) for same in self._kinds):
            self._kinds[:] = [same_types(tensors), *self._kinds[: _MAX_KINDS - 1]]
            guard = same_types(tuple(t for t, seen in zip(tensors, self._guarded, strict=True) if seen))
            self.ways.quick(id(guard))  # before the oldest is let go of, which it may ask until then
            self._quick_guards[:] = [guard, *self._quick_guards[: _MAX_KINDS - 1]]


class _Place(NamedTuple):
    """What of a bundle goes where: all its fields, the first `present` of which are tensors, and whether those are nested."""

    wanted: type
    fields: Callable[[Any], tuple[Any, ...]]
    nested: Callable[[Any], tuple[Any, ...]]
    present: int
    workspace_bytes: int


def _short(place: _Place, bound: Any, vouch: Any, kinds: list[Callable[..., bool]]) -> Callable[[Any, Any, bool], bool]:
    """One flat function: it is all that Python does for a call."""
    import torch

    wanted, fields, nested, present, needed = place
    empty, plain, uint8 = torch.empty, torch.Tensor, torch.uint8

    def call(args: Any, workspace: Any, launch: bool) -> bool:
        if type(args) is not wanted:
            return False
        given = fields(args)
        try:
            if True in nested(args):
                return False  # torch's guard ends the process where it meets one
            for same in kinds:
                if same(*given[:present]):
                    break
            else:
                return False
            if workspace is None:
                if needed and launch:
                    workspace = empty(needed, dtype=uint8, device=given[0].device)
            elif type(workspace) is not plain:
                return False
            verdict = bound(*given, workspace, launch)
            if verdict == _UNKNOWN_ROOM:
                vouch(*_rooms(given[:present] if workspace is None else (*given[:present], workspace)))
                verdict = bound(*given, workspace, launch)
        except (RuntimeError, TypeError, ValueError, BufferError, AttributeError, NotImplementedError):
            # A tensor that cannot be handed over, or a failed launch: the long way says what it is.
            return False
        return verdict == _DONE  # type: ignore[no-any-return]

    return call


def _rule(spec: TensorSpec) -> Iterator[int]:
    """What csrc/common/contract.h is told of an operand."""
    layout, written, expandable, step, whole = spec.strides
    yield from (True, written, _LAYOUTS.index(layout), sum(1 << axis for axis in expandable), step, *(whole or (-1, -1)))
    yield from (spec.alignment, *_DTYPES[spec.dtype], len(spec.shape))
    yield from (-1 if dim.size is None else dim.size for dim in spec.shape)


def _rooms(tensors: Sequence[Tensor]) -> Iterator[int]:
    for tensor in tensors:
        yield tensor.data_ptr()
        yield room(tensor)


def same_types(tensors: tuple[Tensor, ...]) -> Callable[..., bool]:
    """A test for tensors of the same Python types, devices and dispatch keys, without gradient, of any shape."""
    try:
        from torch._C._dynamo.guards import TensorGuards
    except ImportError:
        wanted = [_kind(t) for t in tensors]
        return lambda *given: [_kind(t) for t in given] == wanted
    sizes: Any = [[None] * t.dim() for t in tensors]
    test: Callable[..., bool] = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=sizes).check
    return test


def _kind(t: Any) -> tuple[Any, ...]:
    if not hasattr(t, "requires_grad"):
        return (type(t),)
    return (type(t), t.dtype, t.device, t.layout, t.requires_grad, t.is_conj(), t.is_neg(), t.is_nested, t.is_quantized)
