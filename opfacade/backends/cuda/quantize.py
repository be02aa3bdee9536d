"""Quantisation on CUDA: folds under a name."""

from __future__ import annotations

from opfacade.backends.cuda.fold_engine import fold_kernel
from opfacade.plans.quantize import DequantizeDescriptor, QuantizeDescriptor

CANDIDATES = (fold_kernel(QuantizeDescriptor), fold_kernel(DequantizeDescriptor))
