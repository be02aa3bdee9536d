"""The kernels on the host: every token is proven, and no bit depends on how rows are split or on the rest of the batch."""

import math

import pytest
import torch

from opfacade.backends.cuda.sampling import split
from opfacade.plans.sampling import SampleArgs, SampleDescriptor
from opfacade.testing import determinism, numerics, problems
from opfacade.testing.bits import same_bits
from tests import emulator
from tests.families.sampling.calls import call, split_as
from tests.support.assert_guarantee import hold

pytestmark = emulator.needed

FILTERED = {"top_k": True, "top_p": True, "min_p": True, "report": "top_n", "top_n": 5, "probs_out": "filtered"}
KINDS = {
    "stream": {},
    "joint": FILTERED | {"order": "joint"},
    "first": {"top_k": True, "top_p": True, "dtype": "bf16"},
    "adjusted": {"penalties": True, "bias": "sparse", "num_biases": 9, "bitmask": True, "soft_cap": 20.0, "dtype": "f16"},
    "adjusted-filtered": FILTERED | {"bias": "dense", "penalties": True, "indices": True, "num_logits": 2},
}


def of(kind, rows=4, vocab=1003):
    return emulator.subject(SampleDescriptor(total_num_rows=rows, vocab=vocab, **KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_is_proven(kind):
    for seed in range(3):
        hold(of(kind), seed)
    hold(of(kind, 3, 5), 3)


def test_random_streams_and_bounds_of_k_are_proven_too():
    logits = torch.randn(9, 500, generator=torch.Generator().manual_seed(6))
    offsets = list(range(9))
    first, second = (run(logits, offset=offsets, stream=stream).token for stream in (1, 2**32 - 1))
    assert (first != second).sum() >= 5
    args = run(logits, offset=offsets, top_k=[0, 7, 600, 2, 1, 9, 10, 11, -1], max_top_k=9, probs_out="filtered")
    assert (args.probs > 0).sum(-1).tolist() == [9, 7, 9, 2, 1, 9, 9, 9, 9]


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(30))
def test_random_problems(seed):
    hold(emulator.subject(problems.random_descriptor("sample", seed)), seed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_its_bits_in_any_batch(kind):
    shown = determinism.batch_invariance(of(kind), determinism.Campaign(3, 2, 5, 1), seed=1)
    assert shown.different == 0 < shown.compared


def outputs(subject, args):
    for name in written(subject):
        getattr(args, name).fill_(7)
    subject.run(args)
    return [getattr(args, name).clone() for name in written(subject)]


def written(subject):
    return [name for name, spec in subject.descriptor.operands().items() if spec.written]


@pytest.mark.parametrize("kind", ["stream", "joint", "adjusted-filtered"])
def test_no_number_of_ctas_changes_a_bit(kind):
    subject = of(kind, 2, 1003)
    args = subject.args(5)
    want = outputs(subject, args)
    for ctas, held in ((2, 10**5), (4, 10**5), (1, 0), (2, 256)):
        with split_as(ctas, held):
            got = outputs(of(kind, 2, 1003), args)
        assert all(map(same_bits, got, want)), (ctas, held)


def test_a_cta_that_runs_first_waits_for_what_others_share(monkeypatch):
    subject = of("joint", 2, 1003)
    args = subject.args(5)
    want = outputs(subject, args)
    emulator.last_first(monkeypatch)
    with split_as(4, 10**5):
        assert all(map(same_bits, outputs(of("joint", 2, 1003), args), want))


def test_sizes_choose_the_split():
    wide, old = emulator.subject(SampleDescriptor(total_num_rows=1, vocab=8))._target, split.Target.parse("sm_80")
    assert [split.ctas_of(v, wide) for v in (1, 8191, 8192, 16384, 32768, 2**31 - 1)] == [1, 1, 2, 4, 8, 8]
    assert split.ctas_of(151936, old) == 1
    assert split.held_bytes(wide, 16384) * 8 >= 4 * 262144


def run(logits, **given):
    descriptor, args = call(logits, **given)
    subject = emulator.subject(descriptor)
    subject.run(args)
    assert numerics.check(descriptor, args, subject.plan.sku).worst <= 1
    return args


@pytest.mark.parametrize("name", ["min_p", "top_p"])
@pytest.mark.parametrize("beside", [{}, {"top_k": 40}], ids=["alone", "k"])
def test_a_share_of_nan_keeps_every_candidate(name, beside):
    """The tokens equal those without it; many are not the most likely ones."""
    logits = torch.randn(16, 300, generator=torch.Generator().manual_seed(3))
    given = {"offset": list(range(16)), **beside}
    tokens = run(logits, **given, **{name: math.nan}).token
    assert torch.equal(tokens, run(logits, **given).token)
    assert (tokens != logits.argmax(1)).sum() > 8


def test_the_order_of_filters_says_which_mass_p_refers_to():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    for order, kept in (("top_k_first", 1), ("joint", 2)):
        args = run(logits, top_k=2, top_p=0.5, order=order, probs_out="filtered")
        assert (args.probs[0] > 0).sum() == kept


def test_equal_logits_are_cut_by_id():
    """All values are in one bucket, then equal: ids decide, in several passes."""
    for k in (1, 31, 300, 301, 700):
        args = run(torch.zeros(1, 701), top_k=k, probs_out="filtered")
        assert (args.probs[0] > 0).tolist() == [i < k for i in range(701)]
        torch.testing.assert_close(args.probs[0, :k], torch.full((k,), 1 / k))
    args = run(torch.zeros(1, 701), top_p=0.5, probs_out="filtered")
    assert (args.probs[0] > 0).sum() == 351


def test_neighbouring_numbers_are_told_apart():
    """Values that differ in their last bit, far from 0, at 0, and of both signs."""
    for middle in (17.0, 0.0, -3.0, 2.0**-140):
        start = (
            torch.tensor([middle], dtype=torch.float32).view(torch.int32) if middle else torch.tensor([0], dtype=torch.int32)
        )
        logits = (start + torch.arange(64, dtype=torch.int32)).view(torch.float32)[torch.randperm(64)][None]
        args = run(logits, top_k=9, probs_out="filtered")
        assert sorted(args.probs[0].nonzero()[:, 0].tolist()) == sorted(logits[0].topk(9).indices.tolist())
    args = run(torch.tensor([[-1e-45, -0.0, 0.0, 1e-45]]), top_k=2, probs_out="filtered")
    assert args.probs[0].tolist() == [0, 0.5, 0, 0.5]


def test_every_entry_of_a_list_counts():
    for count in (1, 2, 700):
        listed = torch.arange(count, dtype=torch.int32)[None] * 7, torch.zeros(1, count)
        listed[1][0, -1] = 30.0
        assert run(torch.randn(1, 5000), bias_tokens=listed[0], bias_values=listed[1]).token.item() == 7 * (count - 1)


def test_extreme_numbers():
    inf, nan = math.inf, math.nan
    rows = [[3e38, -3e38, 1.0, inf], [-3e38, -2e38, -inf, nan], [inf, inf, nan, -inf], [nan] * 4, [1e-45, -1e-45, 0.0, -0.0]]
    for temperature in (0.0, 1e-38, 1e-3, 1.0, 1e38, inf, nan):
        run(rows, temperature=temperature)
        run(rows, temperature=temperature, top_k=2, top_p=0.9, report="logprob")


def test_a_wrong_index_and_a_wrong_count_stay_in_their_tensors():
    logits = torch.randn(3, 40)
    args = run(logits, rows=4, indices=[0, 1, 2, 0], num_valid=[3])
    descriptor, wrong = call(logits, rows=4, indices=[2**31 - 1, 1, -5, 0], num_valid=[3])
    emulator.subject(descriptor).run(wrong)
    assert wrong.token.tolist() == [args.token[0], args.token[1], wrong.token[2], 77]
    for count in (0, -1, 5, 2**31 - 1):
        wrong.num_valid.fill_(count), wrong.token.fill_(77)
        emulator.subject(descriptor).run(wrong)
        assert wrong.token.tolist() == [77] * 4


def test_rows_of_any_stride_and_alignment_have_the_bits_of_compact_ones():
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.randn(3, 1001).to(dtype)
        wide = torch.zeros(3, 1500, dtype=dtype)
        wide[:, 3:1004] = logits
        for given in ({}, {"top_k": 20}):
            first, second = run(logits, **given), run(wide[:, 3:1004], **given)
            assert same_bits(first.token, second.token)


def test_the_largest_row_of_many_tokens_is_split_over_a_cluster():
    args = run(torch.randn(1, 16385, generator=torch.Generator().manual_seed(2)), top_p=0.9)
    assert isinstance(args, SampleArgs)
