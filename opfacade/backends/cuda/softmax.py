"""Softmax on CUDA: folds under a name."""

from opfacade.backends.cuda.fold_engine import fold_kernel
from opfacade.plans.softmax import SoftmaxDescriptor

CANDIDATES = (fold_kernel(SoftmaxDescriptor),)
