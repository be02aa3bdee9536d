"""CUDA sampling."""

from opfacade.backends.cuda.sampling.sample import SAMPLE

CANDIDATES = (SAMPLE.candidate,)
