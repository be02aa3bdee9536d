"""Softmax on CUDA: folds under a name."""

from opfacade.backends.cuda.folds.column_engine import fold_kernels
from opfacade.plans.softmax import SoftmaxDescriptor

CANDIDATES = fold_kernels(SoftmaxDescriptor)
