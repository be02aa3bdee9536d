"""The reference of softmax."""

from opfacade.backends.reference._folds import fold_reference
from opfacade.plans.softmax import SoftmaxDescriptor

CANDIDATES = (fold_reference(SoftmaxDescriptor),)
