"""Every kernel on a GPU, except attention: NaN and infinities, counts above the number of rows, and unaligned operands.

The harness of each op judges the results. The same calls judge the reference, on every machine.
"""

import pytest
import torch

from opfacade.plans.sampling import SampleDescriptor, TopKDescriptor
from opfacade.select.registry import examples
from opfacade.testing.bits import same_bits
from opfacade.testing.subject import Subject
from tests.support import poison, unaligned
from tests.support.accepted import accepted

OPS = (
    "norm", "softmax", "quantize", "dequantize", "fold", "gated_activation", "map", "rotary", "qkv_prepare", "paged_kv_append",
    "merge_states", "adjust_logits", "probabilities", "sample", "topk", "verify_drafts",
)  # fmt: skip
# Kernels may assume that the values of these operands are finite.
FINITE = ("rotary", "qkv_prepare", "paged_kv_append", "merge_states")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# Problems in which every row of logits is aligned if the first row is.
EVEN = [
    SampleDescriptor(total_num_rows=3, vocab=1024, dtype="f32"),
    SampleDescriptor(total_num_rows=3, vocab=1024, dtype="bf16", top_p=True),
    TopKDescriptor(total_num_rows=3, vocab=1024, k=8, dtype="f32"),
]
# Problems with scales per group or per block, which multiply partial sums.
OWN = [
    *(
        one
        for one in {problem.digest(): problem for problem in examples()}.values()
        if one.op in OPS
        or (one.op in ("matmul", "grouped_matmul") and (one.weight_format or (one.scaling is not None and one.scaling.in_k)))
    ),
    *EVEN,
]
PROBLEMS = [pytest.param(one, id=f"{one.op}-{one.digest()[:8]}") for one in OWN]


def wrong(problem, device, calls):
    plan, found = accepted(Subject(problem, "reference" if device == "cpu" else "cuda", device)).plan, []
    for name, args in calls:
        if args is not None and not unaligned.worst(problem, plan.run, plan.sku, args) <= 1:
            found.append(name)
    if device == "cuda":
        torch.cuda.synchronize()
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("problem", [one for one in PROBLEMS if one.values[0].op not in FINITE])
def test_specials_in_every_operand(problem, device):
    assert wrong(problem, device, poison.specials(problem, 3, device)) == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("problem", [one for one in PROBLEMS if list(poison.counted(one.values[0]))])
def test_counts_above_the_number_of_rows_write_no_row(problem, device):
    """With such a count no row is valid."""
    for name, args in poison.counts(problem, 3, device):
        before = poison.left_alone(problem, name.partition("=")[0], args)
        assert before
        assert wrong(problem, device, [(name, args)]) == []
        assert [operand for operand, kept in before.items() if not same_bits(getattr(args, operand), kept)] == [], name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_each_operand_one_element_on(problem, device):
    assert wrong(problem, device, unaligned.calls(problem, 5, device)) == []
