"""The reference of norms."""

from __future__ import annotations

from opfacade.backends.reference._folds import fold_reference
from opfacade.plans.norm import NormDescriptor

CANDIDATES = (fold_reference(NormDescriptor),)
