"""Folds of a user's program on CUDA."""

from __future__ import annotations

from opfacade.backends.cuda.fold_engine import fold_kernel
from opfacade.plans.reduction import FoldDescriptor

CANDIDATES = (fold_kernel(FoldDescriptor),)
