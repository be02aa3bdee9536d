"""Refusals of an adapter as errors of opfacade's own kinds, each with the call and the argument."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from typing import TYPE_CHECKING

from opfacade.errors import Issue, OpfacadeError, from_issues

if TYPE_CHECKING:
    from torch import Tensor

STAGE = "call"
_MOST = 2**127  # an integer beyond it is none of f32


def unmapped(op: str, argument: str, expected: str, got: object, hint: str = "") -> OpfacadeError:
    """An argument value that opfacade does not support."""
    return _error(op, Issue("OPF-C001", argument, expected, str(got), hint, kind="UnsupportedError"))


def wrong(op: str, argument: str, expected: str, got: object, hint: str = "") -> OpfacadeError:
    """A value that the argument cannot have."""
    return _error(op, Issue("OPF-C002", argument, expected, str(got), hint, kind="ArgumentError"))


def unplanned(op: str) -> OpfacadeError:
    """A run() of a wrapper without an earlier plan()."""
    return _error(op, Issue("OPF-C003", "plan", "a call of plan() before run()", "none", kind="PlanStateError"))


def unlike_plan(
    op: str, argument: str, expected: object, got: object, hint: str = "plan() takes the dtypes of the run."
) -> OpfacadeError:
    """A tensor whose dtype differs from plan()'s."""
    return _error(op, Issue("OPF-C004", argument, str(expected), str(got), hint, kind="DTypeError"))


def wrong_shape(op: str, argument: str, expected: str, got: object, hint: str = "") -> OpfacadeError:
    return _error(op, Issue("OPF-C005", argument, expected, str(got), hint, kind="ShapeError"))


def wrong_dtype(op: str, argument: str, expected: object, got: object, hint: str = "") -> OpfacadeError:
    """A dtype that the argument cannot have."""
    return _error(op, Issue("OPF-C002", argument, str(expected), str(got), hint, kind="DTypeError"))


def wrong_layout(op: str, argument: str, expected: str, got: object) -> OpfacadeError:
    """A tensor whose elements lie where they cannot."""
    return _error(op, Issue("OPF-C002", argument, expected, str(got), kind="LayoutError"))


def shared(op: str, argument: str, other: str) -> OpfacadeError:
    """A tensor that is written shares memory with another one of the call."""
    return _error(op, Issue("OPF-A040", argument, f"memory of its own, apart from {other}", "overlap", kind="AliasError"))


def wrong_type(op: str, argument: str, expected: str, got: object) -> OpfacadeError:
    """A value that is no tensor, or no other thing that the argument takes."""
    return _error(op, Issue("OPF-C007", argument, expected, str(got), kind="ArgumentTypeError"))


def missing(module: str, name: str, known: Iterable[str]) -> OpfacadeError:
    """A name that an adapter's module lacks; the hint has those of its names that are nearest."""
    near = get_close_matches(name, [one for one in known if not one.startswith("_")], n=3)
    hint = " ".join(["docs/migrating.md says what it has.", *([f"Near: {', '.join(near)}."] if near else [])])
    issue = Issue("OPF-C008", name, f"a name of {module}", "none of them", hint, kind="MissingNameError")
    return from_issues(module, "", [issue])


def _error(op: str, issue: Issue) -> OpfacadeError:
    return from_issues(op, STAGE, [issue])


def require_integer(op: str, argument: str, value: object) -> int:
    """An integer of Python or numpy, but no truth."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise wrong(op, argument, "an integer", _shown(value))
    return int(value)


def require_real(op: str, argument: str, value: object, expected: str) -> float:
    """The same of any number; a magnitude beyond 2^127 of an integer is 2^127."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong(op, argument, expected, _shown(value))
    return float(max(-_MOST, min(int(value), _MOST)) if isinstance(value, Integral) else value)


def number(op: str, argument: str, value: object) -> float:
    """The value as a float: any number, also one of numpy or the one element of a tensor."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise wrong(op, argument, "a number", _shown(value)) from None


def refuse_unless(op: str, given: Mapping[str, tuple[object, object]], hint: str = "") -> None:
    """given: each argument's value and its neutral value; the first argument with another value is refused by its name."""
    for argument, (value, neutral) in given.items():
        if value is not None and (not isinstance(value, (Real, str)) or value != neutral):
            expected = "None" if neutral is None else f"None or {neutral!r}"
            raise unmapped(op, argument, expected, _shown(value), hint)


def refuse_gradients(op: str, tensors: Mapping[str, Tensor | None]) -> None:
    """No op here has a backward pass."""
    import torch

    if not torch.is_grad_enabled():
        return
    for argument, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            hint = "Call .detach(), or run under torch.no_grad(): there is no backward."
            issue = Issue("OPF-C006", argument, "requires_grad=False", "requires_grad=True", hint, kind="GradNotSupportedError")
            raise _error(op, issue)


def require_tensor(op: str, argument: str, value: object, dims: str) -> tuple[int, ...]:
    """The shape of a tensor with the named dimensions."""
    tensor = require_dense(op, argument, value, dims)
    if tensor.dim() != dims.count(",") + 1:
        raise wrong_shape(op, argument, f"[{dims}]", list(tensor.shape))
    return tuple(tensor.shape)


def require_int32(op: str, argument: str, value: object, dims: str) -> tuple[int, ...]:
    """The shape of a tensor of lengths or places, which are never narrowed."""
    import torch

    shape = require_tensor(op, argument, value, dims)
    if isinstance(value, torch.Tensor) and value.dtype != torch.int32:
        hint = f"Use {argument}.to(torch.int32); values are never narrowed in silence."
        raise wrong_dtype(op, argument, torch.int32, value.dtype, hint)
    return shape


def require_dense(op: str, argument: str, value: object, dims: str) -> Tensor:
    """A dense tensor; the error tells dims, but any rank passes."""
    import torch

    if not isinstance(value, torch.Tensor):
        got = "None" if value is None else type(value).__name__
        raise _error(op, Issue("OPF-C007", argument, f"a tensor [{dims}]", got, kind="ArgumentTypeError"))
    if value.is_nested or value.layout != torch.strided:
        got = "a nested tensor" if value.is_nested else str(value.layout)
        raise _error(op, Issue("OPF-C007", argument, f"a dense tensor [{dims}]", got, kind="ArgumentTypeError"))
    return value


def truth(op: str, argument: str, value: object) -> bool:
    """A flag, by the rules of Python."""
    try:
        return bool(value)
    except (TypeError, ValueError, RuntimeError):
        raise wrong(op, argument, "True or False", _shown(value)) from None


def _shown(value: object) -> str:
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"a tensor {list(shape)}"
