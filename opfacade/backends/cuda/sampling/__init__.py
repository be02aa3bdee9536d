"""CUDA sampling."""

from opfacade.backends.cuda.sampling.adjust import ADJUST
from opfacade.backends.cuda.sampling.probabilities import PROBABILITIES
from opfacade.backends.cuda.sampling.sample import SAMPLE
from opfacade.backends.cuda.sampling.top_k import TOP_K
from opfacade.backends.cuda.sampling.verify import VERIFY

CANDIDATES = (SAMPLE, TOP_K.candidate, PROBABILITIES.candidate, ADJUST.candidate, VERIFY.candidate)
