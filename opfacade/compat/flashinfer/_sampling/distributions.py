"""Filters, masks and draws over rows of logits or probabilities, for FlashInfer's sampling calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from opfacade.compat.constants import filled, filled_f32
from opfacade.compat.dtypes import float_name, name_of, require_integers, require_reals
from opfacade.compat.flashinfer._sampling.seeds import Noise, noise_of
from opfacade.compat.refusals import require_integer, require_real, require_tensor, wrong, wrong_shape
from opfacade.compat.selecting import plan_for
from opfacade.plans.sampling import ProbabilitiesArgs, ProbabilitiesDescriptor, SampleArgs, SampleDescriptor

Number = int | float | torch.Tensor
Controls = Mapping[str, Number]  # top_k, top_p, min_p, temperature: one value, or one for each row of the distributions
ORDERS = ("top_k_first", "joint")


class How(NamedTuple):
    """Common arguments of all samplers."""

    noise: Noise
    indices: torch.Tensor | None = None
    check_nan: bool = False
    return_valid: bool = False


def checked_rows(op: str, name: str, x: torch.Tensor, check_nan: bool = False) -> torch.Tensor:
    """x `[rows, vocab]` with contiguous rows, in a dtype that the plans support."""
    require_tensor(op, name, x, "rows, vocab")
    float_name(op, name, x)
    if check_nan and bool(x.isnan().any()):
        raise wrong(op, name, "no NaN, because check_nan is True", "NaN")
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def order_of(op: str, value: str) -> str:
    if not isinstance(value, str) or value not in ORDERS:
        raise wrong(op, "filter_apply_order", "'top_k_first' or 'joint'", repr(value))
    return value


def column(op: str, name: str, value: Number, x: torch.Tensor) -> torch.Tensor:
    """A filter parameter as i32 or f32 [rows of x]."""
    rows, vocab = x.shape
    whole = name == "top_k"
    if not isinstance(value, torch.Tensor):
        if whole:
            return filled(rows, max(0, min(require_integer(op, name, value), vocab)), x.device)
        return filled_f32(rows, require_real(op, name, value, f"a number or [{rows}]"), x.device)
    if tuple(value.shape) != (rows,):
        raise wrong_shape(op, name, f"a number or [{rows}]", list(value.shape))
    if whole:
        require_integers(op, name, value)
        value = value if value.dtype == torch.int32 else value.long().clamp(0, vocab).to(torch.int32)
        return value.contiguous()
    require_reals(op, name, value)
    return value.to(torch.float32).contiguous()


def columns(op: str, controls: Controls, x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: column(op, name, value, x) for name, value in controls.items()}


def formed(op: str, x: torch.Tensor, form: str, controls: Controls, order: str = "top_k_first") -> torch.Tensor:
    """Applies `form` of `ProbabilitiesDescriptor` to x. The result is f32; for "mask", it has the dtype of x."""
    given = columns(op, controls, x)
    facts = (form, *x.shape, name_of(op, "x", x.dtype), order, tuple(given))
    plan = plan_for(_probabilities, facts, x.device)
    out = torch.empty_like(x, dtype=x.dtype if form == "mask" else torch.float32, memory_format=torch.contiguous_format)
    plan.run(ProbabilitiesArgs(x=x, **given, **{"masked" if form == "mask" else "out": out}))
    return out


def _probabilities(facts: tuple[Any, ...]) -> ProbabilitiesDescriptor:
    form, rows, vocab, dtype, order, names = facts
    flags = dict.fromkeys(names, True)
    return ProbabilitiesDescriptor(total_num_rows=rows, vocab=vocab, form=form, dtype=dtype, order=order, **flags)


def drawn(op: str, logits: torch.Tensor, how: How, controls: Controls, order: str = "top_k_first") -> Any:
    """Tokens `[rows]`, and with return_valid whether each row has a candidate; the token of a row without a candidate is 0."""
    indices, given = _indices(op, how.indices, logits.shape[0]), columns(op, controls, logits)
    if indices is not None and indices.shape[0] and not logits.shape[0]:
        raise wrong_shape(op, "logits", "at least one row, because indices refer to rows", list(logits.shape))
    if indices is not None:
        at = indices.long()
        at = at.masked_fill((at < 0) | (at >= logits.shape[0]), 0)  # the row used for an invalid index
        given = {name: value[at] for name, value in given.items()} | {"indices": indices}
    rows = logits.shape[0] if indices is None else indices.shape[0]
    seed, offset = noise_of(op, how.noise, rows, logits.device)
    facts = (rows, *logits.shape, name_of(op, "logits", logits.dtype), order, tuple(given))
    plan = plan_for(_sample, facts, logits.device)
    token = torch.empty(rows, dtype=torch.int32, device=logits.device)
    valid = torch.empty(rows, dtype=torch.uint8, device=logits.device)
    plan.run(SampleArgs(logits=logits, seed=seed, offset=offset, token=token, valid=valid, **given))
    token = token.clamp_(min=0)
    if how.indices is not None:
        token = token.to(how.indices.dtype)
    return (token, valid.view(torch.bool)) if how.return_valid else token


def _sample(facts: tuple[Any, ...]) -> SampleDescriptor:
    rows, count, vocab, dtype, order, names = facts
    flags: dict[str, Any] = dict.fromkeys(names, True)
    if "indices" in flags:
        flags["num_logits"] = count
    return SampleDescriptor(total_num_rows=rows, vocab=vocab, dtype=dtype, temperature=False, order=order, **flags)


def _indices(op: str, indices: torch.Tensor | None, rows: int) -> torch.Tensor | None:
    """The indices as i32; invalid ones stay invalid."""
    if indices is None:
        return None
    require_tensor(op, "indices", indices, "rows")
    if indices.dtype not in (torch.int32, torch.int64):
        raise wrong(op, "indices", "dtype int32 or int64", indices.dtype)
    return indices.clamp(-1, rows).to(torch.int32).contiguous()
