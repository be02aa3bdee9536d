"""Latent attention: attention of one KV head, whose rows are key and value at once."""

from __future__ import annotations

from opfacade.testing.families.attention import AttentionHarness
from opfacade.testing.harness import Harness

HARNESSES: dict[str, Harness] = {"mla_decode": AttentionHarness()}
