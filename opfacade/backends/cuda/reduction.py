"""Folds of a user's program on CUDA."""

from __future__ import annotations

from opfacade.backends.cuda.folds.column_engine import fold_kernels
from opfacade.backends.cuda.folds.general_engine import general_kernel
from opfacade.backends.cuda.folds.level_engine import level_kernel
from opfacade.backends.cuda.folds.ragged_engine import ragged_kernels
from opfacade.backends.cuda.folds.split_engine import split_kernels
from opfacade.plans.reduction import FoldDescriptor

CANDIDATES = (
    *split_kernels(FoldDescriptor),
    *fold_kernels(FoldDescriptor),
    *ragged_kernels(FoldDescriptor),
    level_kernel(FoldDescriptor),
    general_kernel(FoldDescriptor),
)
