"""The reference of folds."""

from __future__ import annotations

from opfacade.backends.reference._folds import fold_reference
from opfacade.plans.reduction import FoldDescriptor

CANDIDATES = (fold_reference(FoldDescriptor),)
