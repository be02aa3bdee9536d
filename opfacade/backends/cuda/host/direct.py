"""The fast path of a call: the host library checks the operands (csrc/host/call_signature.h) and runs the kernel's binding.

Python checks only facts that C++ cannot read: the type of the bundle and, by torch's guards, that its tensors are plain and
like those of a call that passed the full check. A call that the fast path refuses gets the full check, which writes all
messages: so the fast path may refuse valid calls, but never accepts invalid ones. Replay (quick.py) does the same without
Python and falls back to the fast path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from opfacade.backends.cuda.host import quick
from opfacade.core import launch_errors
from opfacade.core.call_guards import getter, unless_wanted
from opfacade.core.candidate import WORKSPACE_ALIGNMENT, FastPaths, Operands
from opfacade.core.checks import check, check_beside, has_memory, needs_gradient
from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.dtypes import DTYPES
from opfacade.core.operands import TensorSpec, has_rules, room
from opfacade.errors import Issue, from_issues

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args

CUDA = 2  # kDLCUDA
_DONE, _REFUSED, _UNKNOWN_EXTENT = 0, 1, 2  # as in call_signature.h
_MAX_GUARDS = 4
_MAX_FIELDS, _MAX_RANK, _MAX_SCALARS = 32, 8, 24  # as in call_signature.h
# Errors that OPFACADE_VALIDATE=off does not report.
_UNCHECKED = ("AliasError", "GradNotSupportedError")
_LAYOUTS = ("rows", "contiguous", "strided")  # as in call_signature.h
_ABSENT = (False, False, 0, 0, 1, -1, -1, 1, 0, 0, 0)


class KernelCall(NamedTuple):
    """A kernel's `run`, and its arguments besides the operands."""

    run: Any
    scalars: tuple[Any, ...]
    takes_workspace: bool
    workspace_bytes: int
    device_type: int = CUDA


def require_fit(descriptor: Descriptor[Any], scalars: tuple[Any, ...]) -> None:
    """Refuse an implementation with more operands or scalars than the host library supports, because nothing else checks its
    calls."""
    low = all(len(spec.shape) <= _MAX_RANK for spec in operands_of(descriptor).values())
    plain = all(type(scalar) in (int, float, bool) for scalar in scalars)
    few = len(descriptor.args_type.__slots__) <= _MAX_FIELDS and len(scalars) <= _MAX_SCALARS
    if not (low and plain and few):
        most = f"{_MAX_FIELDS} fields of rank {_MAX_RANK} and {_MAX_SCALARS} scalars that are int, float or bool"
        raise TypeError(f"{descriptor.op}: the host library supports at most {most}; see csrc/host/call_signature.h.")


class Direct:
    """The fast paths of one plan; `learn` takes bundles that passed the full check, `refuse_unsound` checks bundles without
    one.

    host: the loaded host library. operands: those that the candidate needs.
    """

    __slots__ = (
        "_checked", "_descriptor", "_fields", "_guarded", "_guards", "_kernel", "_operands", "_present", "_replay_guards",
        "_ruled", "paths",
    )  # fmt: skip

    def __init__(self, host: Any, kernel: KernelCall, descriptor: Descriptor[Any], operands: Operands | None = None) -> None:
        operands = operands_of(descriptor) if operands is None else operands
        fields: tuple[str, ...] = descriptor.args_type.__slots__
        absent = [name for name in fields if name not in operands]
        rules = [number for spec in operands.values() for number in _rule(spec)] + list(_ABSENT) * len(absent)
        run, scalars, takes_workspace, workspace_bytes, device_type = kernel
        signature = (run, device_type, takes_workspace, workspace_bytes, len(fields), *rules, *scalars)
        self._guards: list[Callable[..., bool]] = []
        self._replay_guards: dict[int, Callable[..., bool]] = {}
        launch_errors.register()
        self._present = getter(tuple(operands))
        nested = getter(tuple(f"{name}.is_nested" for name in operands))
        layout = _Layout(descriptor.args_type, getter((*operands, *absent)), nested, len(operands), workspace_bytes)
        self._guarded = [DTYPES[spec.dtype].is_float for spec in operands.values()]
        replay = quick.make(host, descriptor.args_type, (*operands, *absent), self._guarded, signature)
        self._checked, self._fields, self._descriptor = host.signature(*signature), layout.fields, descriptor
        self._kernel, self._operands, self._ruled = kernel, operands, has_rules(operands)
        self.paths = FastPaths(replay, _fast(layout, self._checked, host.register_extents, self._guards))

    def learn(self, args: Args) -> None:
        """Admit tensors of these types, devices and dispatch keys, unless one needs a gradient now or has no memory.

        A guard that was learned under no_grad refuses parameters once gradients are on.
        """
        tensors = self._present(args)
        plain = all(has_memory(t) and not needs_gradient(t) for t in tensors)
        if plain and not any(same(*tensors) for same in self._guards):
            self._guards[:] = [same_types(tensors), *self._guards[: _MAX_GUARDS - 1]]
            guard = same_types(tuple(t for t, seen in zip(tensors, self._guarded, strict=True) if seen))
            self._replay_guards[id(guard)] = guard  # kept alive as long as the host library has its id
            self._replay_guards.pop(self.paths.replay(id(guard)), None)

    def refuse_unsound(self, args: Args, workspace: Tensor | None) -> None:
        """Raise for wrong shapes, dtypes, devices, strides or addresses in a call, because a binding does not check them."""
        try:
            plain = type(args) is self._descriptor.args_type and not self._ruled
            if plain and self._checked(*self._fields(args), workspace, False) != _REFUSED:
                return
        except (RuntimeError, TypeError, ValueError, BufferError, AttributeError, NotImplementedError):
            pass  # DLPack refuses an operand, which the full check names
        issues = [issue for issue in self._issues(args, workspace) if issue.kind not in _UNCHECKED]
        if issues:
            raise from_issues(self._descriptor.op, "run", issues)

    def _issues(self, args: Args, workspace: Tensor | None) -> list[Issue]:
        wanted, device = self._descriptor.args_type, "cuda" if self._kernel.device_type == CUDA else "cpu"
        if type(args) is not wanted:
            return [Issue("OPF-A000", "args", wanted.__name__, type(args).__name__, kind="ArgumentTypeError")]
        given = {name: getattr(args, name) for name in wanted.__slots__}
        issues = check(self._operands, given, device, wanted.parts)
        return issues + check_beside({}, workspace, self._kernel.workspace_bytes, WORKSPACE_ALIGNMENT)


class _Layout(NamedTuple):
    """Getters of a bundle: of all fields, the first `present` of which are tensors, and of whether these are nested."""

    wanted: type
    fields: Callable[[Any], tuple[Any, ...]]
    nested: Callable[[Any], tuple[Any, ...]]
    present: int
    workspace_bytes: int


def _fast(
    layout: _Layout, checked: Any, register_extents: Any, guards: list[Callable[..., bool]]
) -> Callable[[Any, Any, bool], bool]:
    """A single function with all Python work of a call."""
    import torch

    wanted, fields, nested, present, needed = layout
    empty, plain, uint8 = torch.empty, torch.Tensor, torch.uint8

    def call(args: Args, workspace: torch.Tensor | None, launch: bool) -> bool:
        if type(args) is not wanted:
            return False
        given = fields(args)
        try:
            if True in nested(args):
                return False  # torch's guards abort the process on a nested tensor
            for same in guards:
                if same(*given[:present]):
                    break
            else:
                return False
            if workspace is None:
                if needed and launch:
                    workspace = empty(needed, dtype=uint8, device=given[0].device)
            elif type(workspace) is not plain:
                return False
            verdict = checked(*given, workspace, launch)
            if verdict == _UNKNOWN_EXTENT:
                register_extents(*_extents(given[:present] if workspace is None else (*given[:present], workspace)))
                verdict = checked(*given, workspace, launch)
        except (RuntimeError, TypeError, ValueError, BufferError, AttributeError, NotImplementedError):
            # DLPack refuses a tensor, or the first launch failed; the full check reports the error.
            return False
        return verdict == _DONE  # type: ignore[no-any-return]

    return call


def _rule(spec: TensorSpec) -> Iterator[int]:
    """The rules of one operand in the format of csrc/host/call_signature.h."""
    facts = DTYPES[spec.dtype]
    layout, written, expandable, step, multiple = spec.strides
    yield from (True, written, _LAYOUTS.index(layout), sum(1 << axis for axis in expandable), step, *(multiple or (-1, -1)))
    yield from (spec.alignment, facts.dlpack_code, facts.bits, len(spec.shape))
    yield from (-1 if dim.size is None else dim.size for dim in spec.shape)


def _extents(tensors: Sequence[Tensor]) -> Iterator[int]:
    for tensor in tensors:
        yield tensor.data_ptr()
        yield room(tensor)


def same_types(tensors: tuple[Tensor, ...]) -> Callable[..., bool]:
    """A test for tensors of the same Python types, devices and dispatch keys, of any shape, if no gradient is required."""
    return unless_wanted(tensors, _same_kinds(tensors))


def _same_kinds(tensors: tuple[Tensor, ...]) -> Callable[..., bool]:
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
