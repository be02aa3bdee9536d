"""Norms on CUDA: folds under a name."""

from __future__ import annotations

from opfacade.backends.cuda.folds.engine import fold_kernel
from opfacade.backends.cuda.folds.general_engine import general_kernel
from opfacade.backends.cuda.folds.scaled_engine import scaled_kernel, without_one_scale
from opfacade.plans.norm import NormDescriptor

CANDIDATES = (
    without_one_scale(fold_kernel(NormDescriptor)),
    scaled_kernel(NormDescriptor),
    without_one_scale(general_kernel(NormDescriptor)),
)
