"""The sum over ranks with residual, norm and quantisation in torch, in one or two steps with the same arithmetic per row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from opfacade.backends.reference import _folds
from opfacade.backends.reference.joined import Facts, as_bytes, gathered, rank_of, rounded_sum, swapped
from opfacade.core.descriptor import Args, Descriptor, operands_of
from opfacade.core.dtypes import torch_dtype
from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee
from opfacade.core.operands import valid_count
from opfacade.plans._collective.all_reduce_norm import AllReduceNormArgs, AllReduceNormDescriptor, tensors_of
from opfacade.plans._folds.op import FoldOp

if TYPE_CHECKING:
    from torch import Tensor

_TEST = "tests/families/collective/test_all_reduce_norm.py::test_one_step_and_two_have_the_bits_of_sums_by_hand"


# The host waits at most until the deadline.
BOUNDED = "tests/distributed/test_group.py::test_a_rank_that_is_stopped_for_a_moment_is_waited_for_and_later_named"
Fold = Callable[[Descriptor[Any], Args], None]  # runs the op after the sum


def _in_torch(problem: Descriptor[Any], args: Args) -> None:
    _folds.run(cast(FoldOp, problem), args)


def all_reduce_norm(d: AllReduceNormDescriptor, args: AllReduceNormArgs, fold: Fold = _in_torch) -> None:
    facts = (args.num_valid, args.scale if d.quant is not None and d.quant.scale == "static" else None)
    if d.two_shot:
        _two_shot(d, args, facts, fold)
    else:
        _finish(d, replace(args, x=_summed(d, gathered(d, args, args.x, facts))), fold)


def _summed(d: AllReduceNormDescriptor, parts: list[Tensor]) -> Tensor:
    return rounded_sum(parts, torch_dtype(d.dtype))


def _finish(d: AllReduceNormDescriptor, args: AllReduceNormArgs, fold: Fold) -> None:
    """The steps after the sum x, for all rows."""
    rows = args.x.shape[0]
    if d.norm != "none":
        _fold(d.normed_rows(rows), args, fold)
        return
    valid = rows if args.num_valid is None else valid_count(args.num_valid, rows)
    total = args.x[:valid]
    if args.residual is not None:
        total = (total.float() + args.residual[:valid].float()).to(total.dtype)
        args.residual[:valid] = total
    plain = args.out if d.quant is None else args.full_out
    if plain is not None:
        plain[:valid] = total
    problem = d.quantised_rows(rows)
    if problem is not None:
        made = args.x.clone()
        made[:valid] = total
        _fold(problem, replace(args, x=made), fold)


def _fold(problem: Descriptor[Any], args: AllReduceNormArgs, fold: Fold) -> None:
    """Runs the op after the sum on its tensors."""
    fold(problem, problem.args_type(**{name: getattr(args, name) for name in operands_of(problem)}))


def _two_shot(d: AllReduceNormDescriptor, args: AllReduceNormArgs, facts: Facts, fold: Fold) -> None:
    """Each rank computes its rows, those with i mod world = rank, and sends the results."""
    made = _own_rows(d, args, _summed(d, swapped(d, args, _dealt(d, args.x), _room(d, args.x), facts)), fold)
    names = sorted(made)
    packed = [as_bytes(made[name]) for name in names]
    import torch

    found = gathered(d, args, torch.cat(packed))
    ends = [0, *accumulate(len(part) for part in packed)]
    for rank, text in enumerate(found):
        for name, first, stop in zip(names, ends, ends[1:], strict=False):
            part = text[first:stop].clone()  # aligned for any type
            _place(d, args, name, (rank, part.view(made[name].dtype).view(made[name].shape)))


def _room(d: AllReduceNormDescriptor, x: Tensor) -> Tensor:
    return x.new_empty(d.own_rows, d.hidden)


def _dealt(d: AllReduceNormDescriptor, x: Tensor) -> list[Tensor]:
    """The rows of each rank, padded to the largest number of rows of a rank."""
    found = []
    for rank in range(d.world):
        own = x[rank :: d.world]
        room = x.new_zeros(d.own_rows, d.hidden)
        room[: len(own)] = own
        found.append(room)
    return found


def _own_rows(d: AllReduceNormDescriptor, args: AllReduceNormArgs, total: Tensor, fold: Fold) -> dict[str, Tensor]:
    """The outputs to send, by name, for this rank's rows, padded like them."""
    rank, places = rank_of(args), d.own_rows
    mine = d.of_own_rows()
    outputs = {name: spec for name, spec in tensors_of(mine, places).items() if spec.role == "out"}
    tensors: dict[str, Any] = {
        name: total.new_zeros([dim.size or 0 for dim in spec.shape], dtype=torch_dtype(spec.dtype))
        for name, spec in outputs.items()
    }
    kept = args.residual
    if d.residual == "replicated" and kept is not None:
        tensors["residual"] = _dealt(d, kept)[rank]
    elif kept is not None:
        tensors["residual"] = kept
    given = {name: getattr(args, name) for name in ("weight", "bias", "scale") if name not in tensors}
    count = len(range(rank, d.total_num_rows, d.world))
    by_row = {name: tensor[:count] for name, tensor in tensors.items()}
    _finish(mine, AllReduceNormArgs(x=total[:count], **given, **by_row), fold)
    return {name: tensor for name, tensor in tensors.items() if name in outputs or d.residual == "replicated"}


def _place(d: AllReduceNormDescriptor, args: AllReduceNormArgs, name: str, sent: tuple[int, Tensor]) -> None:
    """Copy the rows that each rank sent to their positions. sent: (rank, rows)."""
    rank, rows = sent
    valid = d.total_num_rows if args.num_valid is None else valid_count(args.num_valid, d.total_num_rows)
    count = len(range(rank, valid, d.world))
    to: Tensor = getattr(args, name)
    if name == "scale" and d.quant is not None and d.quant.scale_layout != "row":
        to = to.t()
    to[rank : valid : d.world] = rows[:count]


def promise(d: AllReduceNormDescriptor) -> PrecisionGuarantee:
    """The guarantee of the fold after the sum on one rank, because the sum of one part is exact."""
    fold = _fold_of(d)
    of_fold = ErrorModel(id=EXACT) if fold is None else _folds.promise(fold).error_model
    model = ErrorModel(id="rank-sum-f32") if of_fold.id == EXACT else of_fold
    name = model.id if of_fold.id == EXACT else "all-reduce-fold-f64"
    return PrecisionGuarantee(
        math_precision="f32" if of_fold.id == EXACT else "f64",
        accumulator="f32" if of_fold.id == EXACT else "f64",
        deterministic=True,
        rank_invariant="ranks",
        bounded_wait="abort",
        error_model=ErrorModel(id=name, constants=model.constants),
        evidence=(_TEST, BOUNDED),
    )


def _fold_of(d: AllReduceNormDescriptor) -> Any:
    return d.normed_rows(d.total_num_rows) if d.norm != "none" else d.quantised_rows(d.total_num_rows)


def sku_dtypes(d: AllReduceNormDescriptor) -> tuple[tuple[str, str], ...]:
    fold = _fold_of(d)
    return (("x", d.dtype),) if fold is None else _folds.sku_dtypes(fold)


def facts(d: AllReduceNormDescriptor) -> tuple[tuple[str, str], ...]:
    fold = _fold_of(d)
    expr = (("expr", fold.folded().key),) if fold is not None else ()
    return (*expr, ("residual", d.residual))
