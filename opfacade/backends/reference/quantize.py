"""The reference of quantisation. Blocks at an edge, including the end of the valid rows, are padded before and cropped
after."""

from __future__ import annotations

from typing import Any

from opfacade.backends.reference import _folds
from opfacade.backends.reference.declared import reference
from opfacade.core.candidate import Candidate
from opfacade.core.descriptor import Descriptor
from opfacade.plans.quantize import DequantizeDescriptor, QuantizeDescriptor


def _run(descriptor: Any, args: Any) -> None:
    descriptor, args = descriptor.valid_part(args)
    whole = descriptor.whole(args)
    _folds.run(descriptor, whole)
    if whole is not args:
        args.out.copy_(whole.out[: args.out.shape[0], : args.out.shape[1]])


def _reference(kind: type[Descriptor[Any]]) -> Candidate:
    return reference(kind, _folds.promise, _folds.sku_dtypes, _run, lambda problem: (("expr", problem.folded().key),))


CANDIDATES = (_reference(QuantizeDescriptor), _reference(DequantizeDescriptor))
