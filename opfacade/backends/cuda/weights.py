"""Conversions of weights on CUDA: one map per tensor that is written, without a workspace."""

from __future__ import annotations

from opfacade.backends.cuda.composed import composed_on_cuda
from opfacade.plans._composites.composed import Pairs
from opfacade.plans.weights import PackWeightsDescriptor, UnpackWeightsDescriptor

Layouts = PackWeightsDescriptor | UnpackWeightsDescriptor


def _dtypes(d: Layouts) -> Pairs:
    return (("scale", d.weight_format.scale_dtype),)


def _facts(d: Layouts) -> Pairs:
    return (("codes", d.weight_format.dtype), ("source", d.source))


# The kernel of a map does not depend on sizes and needs no workspace.
CANDIDATES = (
    composed_on_cuda(PackWeightsDescriptor, _dtypes, _facts, size_free=True),
    composed_on_cuda(UnpackWeightsDescriptor, _dtypes, _facts, size_free=True),
)
