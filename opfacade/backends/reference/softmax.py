"""The reference of softmax."""

from __future__ import annotations

from opfacade.backends.reference._folds import fold_reference
from opfacade.plans.softmax import SoftmaxDescriptor

CANDIDATES = (fold_reference(SoftmaxDescriptor),)
