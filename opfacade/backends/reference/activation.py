"""Gated activations in torch: exact parts to the bit, the rest in f64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from opfacade.backends.reference import _folds
from opfacade.backends.reference.declared import reference
from opfacade.core.guarantee import PrecisionGuarantee
from opfacade.core.operands import valid_count
from opfacade.plans._programs.values import numbers_of
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.programs.evaluate import Evaluation, Values, stored
from opfacade.programs.guarantees import in_f64

if TYPE_CHECKING:
    from opfacade.plans.activation import GatedActivationArgs


def _run(descriptor: GatedActivationDescriptor, args: GatedActivationArgs) -> None:
    if descriptor.makes_scales:
        _folds.run(descriptor, args)
    else:
        _run_map(descriptor, args)


def _run_map(descriptor: GatedActivationDescriptor, args: Any) -> None:
    rows = None if args.num_valid is None else valid_count(args.num_valid, descriptor.total_num_rows)
    leaves: dict[Any, Any] = {("input", name): part for name, part in descriptor.views(args.x[:rows]).items()}
    leaves |= {("input", "scale"): args.scale} if descriptor.has_scale else {}
    values = Values(leaves | numbers_of(descriptor.scalars, args.x.device), args.x.device)
    out = args.x[:, : descriptor.width] if descriptor.in_place else args.out
    out[:rows].copy_(stored(Evaluation(values, torch.float64)(descriptor.program()["out"]), descriptor.out_dtype))


def _promise(descriptor: GatedActivationDescriptor) -> PrecisionGuarantee:
    if descriptor.makes_scales:
        return _folds.promise(descriptor)
    model = in_f64(descriptor.program().values(), "map")
    return PrecisionGuarantee(math_precision="f64", accumulator="none", error_model=model)


def sku_dtypes(descriptor: GatedActivationDescriptor) -> tuple[tuple[str, str], ...]:
    if descriptor.makes_scales:
        return _folds.sku_dtypes(descriptor)
    out = (("out", descriptor.out_dtype),) if descriptor.quant is not None else ()
    return (*out, ("x", descriptor.dtype))


CANDIDATES = (
    reference(
        GatedActivationDescriptor,
        _promise,
        sku_dtypes,
        _run,
        lambda descriptor: (("expr", descriptor.folded().key if descriptor.makes_scales else descriptor.key),),
    ),
)
