"""Harness of sampling ops."""

from opfacade.testing.families.sampling.sample import SampleHarness
from opfacade.testing.harness import Harness

HARNESSES: dict[str, Harness] = {"sample": SampleHarness()}
