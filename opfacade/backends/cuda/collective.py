"""Ops over several ranks on GPUs: NCCL moves bytes, and every rank computes the same of them, in the order of ranks.

So sums have the order that the reference has, whatever NCCL does. Rows behind a sum are those of our own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from opfacade.backends.cuda import support
from opfacade.backends.reference import _all_reduce_norm as _normed
from opfacade.backends.reference import collective as _in_torch
from opfacade.backends.reference.inference import in_inference_mode
from opfacade.backends.reference.joined import filled_on_failure
from opfacade.core.candidate import Candidate, Launcher, Reason
from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.core.preference import Preference
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plan import Plan
from opfacade.plans.collective import AllReduceNormArgs, AllReduceNormDescriptor

_NAME = "nccl"
_REFERENCE = next(c for c in _in_torch.CANDIDATES if c.descriptor is AllReduceNormDescriptor)


def _declines(descriptor: Descriptor[Any], target: Target) -> Iterator[Reason]:
    yield from support.arch_reasons(target)
    if getattr(descriptor, "world", 1) == 1:
        yield Reason("OPF-S003", "world", "1", "2 or more ranks: one exchanges nothing")


def _declines_counts(descriptor: AllReduceNormDescriptor, target: Target) -> Iterator[Reason]:
    yield from _declines(descriptor, target)
    if descriptor.num_valid and (descriptor.two_shot or descriptor.norm == "none"):
        yield Reason("OPF-S003", "num_valid", "True", "False in two steps or without a norm: the host does not read it")


def _as_in_torch(base: Candidate) -> Candidate:
    """The functions of the reference, on tensors of a GPU."""

    def sku(descriptor: Descriptor[Any], target: Target) -> KernelSku:
        return base.sku(descriptor, target).model_copy(update={"backend": "cuda", "impl": _NAME}).revalidated()

    return replace(base, backend="cuda", impl=_NAME, declines=_listed(_declines), sku=sku)


def _listed(found: Callable[[Any, Target], Iterator[Reason]]) -> Callable[[Any, Target], list[Reason]]:
    return lambda descriptor, target: list(found(descriptor, target))


def _behind(d: AllReduceNormDescriptor, rows: int) -> Descriptor[Any] | None:
    """The op behind a sum of so many rows; None where there is none."""
    return d.normed_rows(rows) if d.norm != "none" else d.quantised_rows(rows)


def _plan(problem: Descriptor[Any], target: Target | None = None) -> Plan[Any]:
    return Plan.select(problem, Preference(), target)


def _sku(d: AllReduceNormDescriptor, target: Target) -> KernelSku:
    """It promises as much as the kernel behind the sum."""
    known = _REFERENCE.sku(d, target)
    behind = _behind(d, d.total_num_rows)
    update: dict[str, Any] = {"backend": "cuda", "impl": _NAME}
    if behind is not None:
        kernel = _plan(behind, target).sku
        update["precision_guarantee"] = _promise(known.precision_guarantee, kernel.precision_guarantee)
        update["spec"] = (*known.spec, ("rows", f"{kernel.impl}.{kernel.revision}"))
        update["spec"] = tuple(sorted(update["spec"]))
    return known.model_copy(update=update).revalidated()


def _promise(known: PrecisionGuarantee, kernel: PrecisionGuarantee) -> PrecisionGuarantee:
    if known.error_model.id == "rank-sum-f32":
        return known
    model = ErrorModel(id="all-reduce-fold-f32", constants=kernel.error_model.constants)
    return known.model_copy(update={"math_precision": "f32", "accumulator": "f32", "error_model": model}).revalidated()


def _launcher(d: AllReduceNormDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    """Kernels behind the sum are loaded now: a graph that is captured may not."""
    rows = {d.own_rows, max(0, d.own_rows - 1)} if d.two_shot else {d.total_num_rows}
    mine = _normed.of_own_rows(d) if d.two_shot else d
    for count in rows:
        behind = _behind(mine, count)
        if behind is not None:
            _plan(behind).compile()
    run = filled_on_failure(lambda d, args: _normed.all_reduce_norm(d, args, _fold), spreads=True)

    def launch(args: AllReduceNormArgs, workspace: object) -> None:
        run(d, args)

    return launch


def _fold(problem: Descriptor[Any], args: Args) -> None:
    _plan(problem).run(args)


CANDIDATES = tuple(
    replace(_as_in_torch(base), declines=_listed(_declines_counts), sku=_sku, launcher=in_inference_mode(_launcher))
    if base.descriptor is AllReduceNormDescriptor
    else _as_in_torch(base)
    for base in _in_torch.CANDIDATES
)
