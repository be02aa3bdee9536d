"""Named models: their sizes, and descriptors of the operators that serve them. `opfacade warmup --model NAME` builds these."""

from __future__ import annotations

from opfacade.models.facts import MODELS, ModelFacts, facts_of
from opfacade.models.problems import descriptors

__all__ = ["MODELS", "ModelFacts", "descriptors", "facts_of"]
