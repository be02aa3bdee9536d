"""Maps in torch: exact parts to the bit, the rest in f64."""

from __future__ import annotations

from typing import Any

import torch

from opfacade.backends.reference.declared import reference
from opfacade.core.guarantee import PrecisionGuarantee
from opfacade.core.operands import valid_count
from opfacade.plans._programs.values import values_of
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs.evaluate import Evaluation, stored
from opfacade.programs.guarantees import in_f64


def _run(descriptor: MapDescriptor, args: Any) -> None:
    evaluation = Evaluation(values_of(descriptor, args), torch.float64)
    rows = None if args.num_valid is None else valid_count(args.num_valid, descriptor.shape[0])
    found = [stored(evaluation(output.value), output.dtype).expand(descriptor.shape) for output in descriptor.outputs]
    for tensor, made in zip(descriptor.written(args), found, strict=True):
        tensor[:rows].copy_(made[:rows]) if descriptor.shape else tensor.copy_(made)


def _promise(descriptor: MapDescriptor) -> PrecisionGuarantee:
    model = in_f64(descriptor.program().values(), "map")
    return PrecisionGuarantee(math_precision="f64", accumulator="none", error_model=model)


def sku_dtypes(descriptor: MapDescriptor) -> tuple[tuple[str, str], ...]:
    """The operands by name."""
    pairs = [(f"in.{given.name}", given.dtype) for given in descriptor.inputs]
    return tuple(sorted(pairs + [(f"out.{made.name}", made.dtype) for made in descriptor.outputs]))


CANDIDATES = (reference(MapDescriptor, _promise, sku_dtypes, _run, lambda descriptor: (("expr", descriptor.key),)),)
