"""Kernels give the same results if their last warps run first, each as far as possible, so that a missing barrier is
detected."""

import pytest

from opfacade.errors import UnsupportedError
from opfacade.select.registry import examples
from tests import emulator
from tests.support.assert_guarantee import hold

OPS = (
    "adjust_logits", "merge_states", "moe_combine", "moe_gather", "moe_sort", "paged_kv_append", "probabilities", "qkv_prepare",
    "rotary", "route", "sample", "topk", "verify_drafts",
)  # fmt: skip
SMALL = [one for one in examples() if one.op in OPS and getattr(one, "vocab", 0) * getattr(one, "total_num_rows", 1) < 12000]
PROBLEMS = [pytest.param(one, id=f"{one.op}-{one.digest()[:8]}") for one in SMALL]


@emulator.needed
@pytest.mark.parametrize("problem", PROBLEMS)
def test_it_keeps_its_guarantee(problem, monkeypatch):
    emulator.last_first(monkeypatch)
    subject = emulator.subject(problem)
    try:
        subject.plan  # noqa: B018
    except UnsupportedError as error:
        pytest.skip(f"no kernel: {error.code}")
    hold(subject, 0)
