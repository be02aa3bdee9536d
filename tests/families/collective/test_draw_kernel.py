"""The emulated draw from the lists of all ranks: the token equals the token of one rank, for all filters, ties and shards."""

import pytest
import torch
import tvm_ffi

from opfacade.backends.cuda.collective import sample_across
from opfacade.backends.reference import _sample_across as in_torch
from opfacade.core.target import Target
from opfacade.plans.collective import SampleAcrossArgs, SampleAcrossDescriptor
from tests import emulator
from tests.families.collective.test_sample_across import ROWS, VOCAB, at_once, given, problem

pytestmark = emulator.needed
TARGET = Target.parse("sm_90a")
FILTERS = {
    "all": {"top_k": True, "max_top_k": 39, "top_p": True, "min_p": True},
    "count": {"top_k": True, "max_top_k": 9, "temperature": False, "stream": 5},
    "share": {"top_k": True, "max_top_k": 33, "top_p": True},
}


def descriptor(world, **fields):
    return SampleAcrossDescriptor(world=world, total_num_rows=ROWS, vocab=VOCAB, shard=-(-VOCAB // world), **fields)


def lists(d, logits, values):
    """The list of each rank: the adjusted logits of its first tokens in the order, and their columns."""
    found = []
    for rank in range(d.world):
        own = logits[:, rank * d.shard : (rank + 1) * d.shard]
        args = SampleAcrossArgs(logits=own, token=None, valid=None, **given(d, values))
        a, at = in_torch._largest(in_torch._adjusted(args), d.listed)
        found.append(torch.stack([a, at.to(torch.int32).view(torch.float32)]).contiguous())
    return found


def drawn(d, sent, values, **more):
    module, held = tvm_ffi.load_module(str(emulator.library_of(sample_across.draw_spec(d, TARGET)))), []
    made = {"token": torch.full((ROWS,), 77, dtype=torch.int32), "valid": torch.full((ROWS,), 7, dtype=torch.uint8)}
    args = SampleAcrossArgs(logits=None, **made, **given(d, values), **more)
    words = sample_across.draw_arguments(d, args, sent)
    module.run(*[emulator.cuda_view(one, held) if isinstance(one, torch.Tensor) else one for one in words])
    return made["token"], made["valid"]


@pytest.mark.parametrize("case", FILTERS)
def test_the_token_equals_the_token_of_one_rank(case):
    for world in (2, 3, 5):
        d = descriptor(world, **FILTERS[case])
        assert sample_across.draws(d)
        for seed in range(3):
            logits, values = problem(seed)
            token, valid = at_once(logits, values, FILTERS[case])
            got = drawn(d, lists(d, logits, values), values)
            assert got[0].tolist() == token.tolist(), (world, seed)
            assert got[1].tolist() == valid.tolist()


def test_rows_past_num_valid_are_not_written():
    logits, values = problem()
    d = descriptor(2, **FILTERS["share"], num_valid=True)
    token, _ = at_once(logits, values, FILTERS["share"])
    for count, real in ((0, 0), (9, 9), (99, 0)):
        got, valid = drawn(d, lists(d, logits, values), values, num_valid=torch.tensor([count], dtype=torch.int32))
        assert got.tolist() == [*token[:real].tolist(), *[77] * (ROWS - real)]
        assert (valid[real:] == 7).all()


def test_a_negative_zero_in_a_list_ties_with_zero():
    """The lower id has -0 and must come first."""
    d, values = descriptor(2, **FILTERS["count"]), problem()[1]
    logits = torch.full((ROWS, VOCAB), -1.0)
    logits[:, [3, VOCAB - 1]] = 0.0
    values["top_k"].fill_(1)
    sent = lists(d, logits, values)
    assert (sent[0][0, :, 0] == 0).all()
    sent[0][0, :, 0] = -0.0
    assert drawn(d, sent, values)[0].tolist() == [3] * ROWS


def test_a_failed_round_gives_no_token():
    """After a failed round, all received values are NaN."""
    values, d = problem()[1], descriptor(3, **FILTERS["all"])
    sent = [torch.full((2, ROWS, d.listed), -1, dtype=torch.int32).view(torch.float32) for _ in range(3)]
    token, valid = drawn(d, sent, values)
    assert (token == -1).all()
    assert (valid == 0).all()


def test_the_kernel_does_not_draw_without_lists_of_all_ranks():
    assert not sample_across.draws(descriptor(2))
    assert not sample_across.draws(descriptor(1, **FILTERS["all"]))
    assert not sample_across.draws(descriptor(2, top_k=True, max_top_k=129))
    few = SampleAcrossDescriptor(world=2, total_num_rows=1, vocab=105, shard=100, top_k=True, max_top_k=6)
    assert not sample_across.draws(few)
