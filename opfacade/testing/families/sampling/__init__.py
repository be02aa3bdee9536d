"""Harnesses of sampling ops."""

from opfacade.testing.families.sampling.distributions import AdjustHarness, ProbabilitiesHarness
from opfacade.testing.families.sampling.sample import SampleHarness
from opfacade.testing.families.sampling.top_k import TopKHarness
from opfacade.testing.families.sampling.verify import VerifyHarness
from opfacade.testing.harness import Harness

HARNESSES: dict[str, Harness] = {
    "adjust_logits": AdjustHarness(),
    "probabilities": ProbabilitiesHarness(),
    "sample": SampleHarness(),
    "topk": TopKHarness(),
    "verify_drafts": VerifyHarness(),
}
