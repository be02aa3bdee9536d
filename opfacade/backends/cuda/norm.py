"""Norms on CUDA: folds under a name."""

from __future__ import annotations

from opfacade.backends.cuda.fold_engine import fold_kernel
from opfacade.plans.norm import NormDescriptor

CANDIDATES = (fold_kernel(NormDescriptor),)
