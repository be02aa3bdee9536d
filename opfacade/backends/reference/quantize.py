"""The reference of quantisation."""

from __future__ import annotations

from opfacade.backends.reference._folds import fold_reference
from opfacade.plans.quantize import DequantizeDescriptor, QuantizeDescriptor

CANDIDATES = (fold_reference(QuantizeDescriptor), fold_reference(DequantizeDescriptor))
