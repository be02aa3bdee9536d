"""Errors of the adapters, in opfacade's classes, each with the call and the argument."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from typing import TYPE_CHECKING

from opfacade.errors import Issue, OpfacadeError, from_issues

if TYPE_CHECKING:
    from torch import Tensor

STAGE = "call"
_MOST = 2**127  # an integer above it does not fit in f32


def unmapped(op: str, argument: str, expected: str, got: object, hint: str = "") -> OpfacadeError:
    """An argument value that opfacade does not support."""
    return _error(op, Issue("OPF-C001", argument, expected, str(got), hint, kind="UnsupportedError"))


def wrong(op: str, argument: str, expected: str, got: object, hint: str = "") -> OpfacadeError:
    """An argument value that is invalid."""
    return _error(op, Issue("OPF-C002", argument, expected, str(got), hint, kind="ArgumentError"))


def unplanned(op: str) -> OpfacadeError:
    """run() of a wrapper was called before plan()."""
    return _error(op, Issue("OPF-C003", "plan", "a call of plan() before run()", "none", kind="PlanStateError"))


def unlike_plan(
    op: str, argument: str, expected: object, got: object, hint: str = "plan() takes the dtypes of the run."
) -> OpfacadeError:
    """A tensor whose dtype differs from plan()'s."""
    return _error(op, Issue("OPF-C004", argument, str(expected), str(got), hint, kind="DTypeError"))


def wrong_shape(op: str, argument: str, expected: str, got: object, hint: str = "") -> OpfacadeError:
    return _error(op, Issue("OPF-C005", argument, expected, str(got), hint, kind="ShapeError"))


def wrong_dtype(op: str, argument: str, expected: object, got: object, hint: str = "") -> OpfacadeError:
    """An invalid dtype of an argument."""
    return _error(op, Issue("OPF-C002", argument, str(expected), str(got), hint, kind="DTypeError"))


def wrong_layout(op: str, argument: str, expected: str, got: object) -> OpfacadeError:
    """A tensor with an unsupported memory layout."""
    return _error(op, Issue("OPF-C002", argument, expected, str(got), kind="LayoutError"))


def shared(op: str, argument: str, other: str) -> OpfacadeError:
    """A written tensor shares memory with another tensor of the call."""
    return _error(op, Issue("OPF-A040", argument, f"memory separate from {other}", "overlap", kind="AliasError"))


def wrong_type(op: str, argument: str, expected: str, got: object) -> OpfacadeError:
    """A value whose type the argument does not accept."""
    return _error(op, Issue("OPF-C007", argument, expected, str(got), kind="ArgumentTypeError"))


def missing(module: str, name: str, known: Iterable[str]) -> OpfacadeError:
    """A name that the adapter's module does not have; the hint lists the most similar names."""
    near = get_close_matches(name, [one for one in known if not one.startswith("_")], n=3)
    hint = " ".join(["docs/migrating.md says what it has.", *([f"Near: {', '.join(near)}."] if near else [])])
    issue = Issue("OPF-C008", name, f"a name of {module}", "none of them", hint, kind="MissingNameError")
    return from_issues(module, "", [issue])


def _error(op: str, issue: Issue) -> OpfacadeError:
    return from_issues(op, STAGE, [issue])


def require_integer(op: str, argument: str, value: object) -> int:
    """An integer of Python or numpy, but not a bool."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise wrong(op, argument, "an integer", _shown(value))
    return int(value)


def require_real(op: str, argument: str, value: object, expected: str) -> float:
    """A number of Python or numpy, but not a bool; an integer above 2^127 in magnitude becomes 2^127 with its sign."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise wrong(op, argument, expected, _shown(value))
    return float(max(-_MOST, min(int(value), _MOST)) if isinstance(value, Integral) else value)


def number(op: str, argument: str, value: object) -> float:
    """The value as a float: any number, including numpy's and a tensor with one element."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise wrong(op, argument, "a number", _shown(value)) from None


def refuse_unless(op: str, given: Mapping[str, tuple[object, object]], hint: str = "") -> None:
    """Refuses by name the first argument whose value is not neutral. given: each argument's value and its neutral value."""
    for argument, (value, neutral) in given.items():
        if value is not None and (not isinstance(value, (Real, str)) or value != neutral):
            expected = "None" if neutral is None else f"None or {neutral!r}"
            raise unmapped(op, argument, expected, _shown(value), hint)


def refuse_gradients(op: str, tensors: Mapping[str, Tensor | None]) -> None:
    """Refuses gradients, because ops have no backward pass."""
    import torch

    if not torch.is_grad_enabled():
        return
    for argument, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            hint = "Call .detach(), or run under torch.no_grad(): there is no backward."
            issue = Issue("OPF-C006", argument, "requires_grad=False", "requires_grad=True", hint, kind="GradNotSupportedError")
            raise _error(op, issue)


def require_tensor(op: str, argument: str, value: object, dims: str) -> tuple[int, ...]:
    """The shape of a tensor; refuses a tensor without exactly the named dimensions."""
    tensor = require_dense(op, argument, value, dims)
    if tensor.dim() != dims.count(",") + 1:
        raise wrong_shape(op, argument, f"[{dims}]", list(tensor.shape))
    return tuple(tensor.shape)


def require_int32(op: str, argument: str, value: object, dims: str) -> tuple[int, ...]:
    """The shape of a tensor of lengths or indices, which are never narrowed."""
    import torch

    shape = require_tensor(op, argument, value, dims)
    if isinstance(value, torch.Tensor) and value.dtype != torch.int32:
        hint = f"Use {argument}.to(torch.int32); values are never narrowed in silence."
        raise wrong_dtype(op, argument, torch.int32, value.dtype, hint)
    return shape


def require_dense(op: str, argument: str, value: object, dims: str) -> Tensor:
    """A dense tensor of any rank; the error shows dims."""
    import torch

    if not isinstance(value, torch.Tensor):
        got = "None" if value is None else type(value).__name__
        raise _error(op, Issue("OPF-C007", argument, f"a tensor [{dims}]", got, kind="ArgumentTypeError"))
    if value.is_nested or value.layout != torch.strided:
        got = "a nested tensor" if value.is_nested else str(value.layout)
        raise _error(op, Issue("OPF-C007", argument, f"a dense tensor [{dims}]", got, kind="ArgumentTypeError"))
    return value


def truth(op: str, argument: str, value: object) -> bool:
    """A flag, converted by Python's rules."""
    try:
        return bool(value)
    except (TypeError, ValueError, RuntimeError):
        raise wrong(op, argument, "True or False", _shown(value)) from None


def _shown(value: object) -> str:
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"a tensor {list(shape)}"
