"""Ops over several ranks on CUDA: there is no kernel of ours yet; the reference moves data through host memory."""

from opfacade.core.candidate import Candidate

CANDIDATES: tuple[Candidate, ...] = ()
