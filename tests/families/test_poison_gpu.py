"""Every kernel but those of attention on a GPU: NaN and infinities, counts of more rows than there are, and unaligned operands.

The harness of each op judges the results, as it judges those of the reference.
"""

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.errors import UnsupportedError
from opfacade.select.registry import examples
from tests.support import poison, unaligned

pytestmark = pytest.mark.gpu
OPS = (
    "norm", "softmax", "quantize", "dequantize", "fold", "gated_activation", "map", "rotary", "qkv_prepare", "paged_kv_append",
    "merge_states", "adjust_logits", "probabilities", "sample", "topk", "verify_drafts",
)  # fmt: skip
# Values of these are held to be finite where they are read.
FINITE = ("rotary", "qkv_prepare", "paged_kv_append", "merge_states")
PROBLEMS = [pytest.param(one, id=f"{one.op}-{one.digest()[:8]}") for one in examples() if one.op in OPS]


def plan_of(problem):
    try:
        return Plan.select(problem, Preference(backend="cuda"))
    except UnsupportedError as error:
        pytest.skip(f"no kernel here: {error.code}")


def wrong(problem, calls):
    plan, found = plan_of(problem), []
    for name, args in calls:
        if args is not None and not unaligned.worst(problem, plan.run, plan.sku, args) <= 1:
            found.append(name)
    torch.cuda.synchronize()
    return found


@pytest.mark.parametrize("problem", PROBLEMS)
def test_specials_in_every_operand(problem):
    if problem.op not in FINITE:
        assert wrong(problem, poison.specials(problem, 3, "cuda")) == []


@pytest.mark.parametrize("problem", PROBLEMS)
def test_counts_of_more_rows_than_there_are(problem):
    assert wrong(problem, poison.counts(problem, 3, "cuda")) == []


@pytest.mark.parametrize("problem", PROBLEMS)
def test_an_operand_one_element_on(problem):
    assert wrong(problem, unaligned.calls(problem, 5, "cuda")) == []
