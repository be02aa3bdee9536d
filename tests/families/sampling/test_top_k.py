"""Top-k: exact values and positions, on the reference, on the host and on a GPU."""

import math

import pytest
import torch

from opfacade import Plan, Target
from opfacade.errors import DescriptorError, IndexDataError
from opfacade.plan import forget_selections
from opfacade.plans.sampling import TopKArgs, TopKDescriptor
from opfacade.testing import determinism, numerics, problems
from opfacade.testing.bits import same_bits
from opfacade.testing.subject import Subject
from tests import emulator
from tests.families.sampling.calls import split_as
from tests.support.assert_guarantee import hold

PLACES = [pytest.param("host", marks=emulator.needed), pytest.param("gpu", marks=pytest.mark.gpu)]


def of(place, **fields):
    descriptor = TopKDescriptor(**({"total_num_rows": 4, "vocab": 1003, "k": 20} | fields))
    return emulator.subject(descriptor) if place == "host" else Subject(descriptor, "cuda", "cuda")


def found(x, k, subject=None, **more):
    x = torch.as_tensor(x)
    names = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
    descriptor = TopKDescriptor(
        total_num_rows=len(x),
        vocab=x.shape[1],
        k=k,
        dtype=names[x.dtype],
        num_valid="num_valid" in more,
        windows="starts" in more,
    )
    args = TopKArgs(x=x, values=torch.full((len(x), k), 77.0).to(x.dtype), positions=torch.full((len(x), k), 77).int(), **more)
    (subject(descriptor) if subject else Plan.select(descriptor, target=Target.cpu())).run(args)
    return args


BACKENDS = [None, pytest.param(emulator.subject, marks=emulator.needed)]


@pytest.mark.parametrize("subject", BACKENDS)
def test_ties_have_the_lower_position_and_what_is_no_number_is_left_out(subject):
    inf, nan = math.inf, math.nan
    args = found([[1.0, 3.0, nan, 3.0, -inf, 2.0], [-0.0, 0.0, inf, -3e38, 3e38, inf], [nan] * 6], 4, subject)
    assert args.positions.tolist() == [[1, 3, 5, 0], [2, 5, 4, 0], [-1] * 4]
    assert torch.equal(args.values, torch.tensor([[3.0, 3.0, 2.0, 1.0], [inf, inf, 3e38, 0.0], [-inf] * 4]))
    assert args.values[1, 3].signbit()


@pytest.mark.parametrize("subject", BACKENDS)
def test_a_k_above_the_row_fills_up(subject):
    args = found([[1.0, 2.0, math.nan]], 5, subject)
    assert args.positions.tolist() == [[1, 0, -1, -1, -1]]
    assert args.values.tolist() == [[2.0, 1.0, -math.inf, -math.inf, -math.inf]]


def windows(*pairs):
    return {
        name: torch.tensor(one, dtype=torch.int32)
        for name, one in zip(("starts", "ends"), zip(*pairs, strict=True), strict=True)
    }


@pytest.mark.parametrize("subject", BACKENDS)
def test_a_window_is_all_that_a_row_has(subject):
    x = torch.tensor([9.0, 1.0, 5.0, 5.0, 7.0, math.inf, 3.0]).expand(7, 7).contiguous()
    pairs = [(0, 7), (1, 5), (3, 4), (2, 2), (5, 1), (7, 7), (6, 7)]
    args = found(x, 3, subject, **windows(*pairs))
    want = [[5, 0, 4], [4, 2, 3], [3, -1, -1], [-1] * 3, [-1] * 3, [-1] * 3, [6, -1, -1]]
    assert args.positions.tolist() == want
    assert args.values.tolist() == [[x[0, at].item() if at >= 0 else -math.inf for at in row] for row in want]


@emulator.needed
@pytest.mark.parametrize("k", [3, 700])
def test_windows_over_several_ctas_are_those_of_the_parts_alone(k):
    """Starts and ends at any column: inside one CTA's part, in none, and across boundaries of parts."""
    x = torch.stack([torch.randperm(4099) - 2000.0 for _ in range(8)])  # no repeated value, since torch orders ties arbitrarily
    pairs = [(0, 4099), (1, 4098), (2047, 2050), (1000, 1003), (2048, 4099), (17, 2048), (4097, 4099), (3000, 2000)]
    for ctas, held in ((1, 10**5), (2, 10**5), (4, 256)):
        with split_as(ctas, held):
            args = found(x, k, emulator.subject, **windows(*pairs))
        for row, (first, last) in enumerate(pairs):
            count = max(0, min(k, last - first))
            own = x[row, first:last].topk(count) if count else None
            assert args.positions[row, count:].unique().tolist() == ([-1] if count < k else [])
            if own is not None:
                assert torch.equal(args.positions[row, :count].long(), own.indices + first)
                assert torch.equal(args.values[row, :count], own.values)


@pytest.mark.parametrize("subject", BACKENDS)
@pytest.mark.parametrize(("k", "vocab"), [(4096, 5003), (4097, 5003), (8192, 6001)])
def test_thousands_of_values_are_those_of_torch(subject, k, vocab):
    x = (torch.randperm(vocab) - vocab // 2).float()[None]
    args = found(x, k, subject)
    count = min(k, vocab)
    assert torch.equal(args.values[:, :count], x.topk(count).values)
    assert torch.equal(args.positions[:, :count].long(), x.topk(count).indices)
    assert (args.positions[:, count:] == -1).all()


def test_torch_serves_a_longer_list_than_a_kernel_sorts():
    descriptor = TopKDescriptor(total_num_rows=1, vocab=2**20, k=2**20)
    assert Plan.select(descriptor, target=Target.parse("sm_90a")).sku.backend == "reference"
    assert Plan.select(descriptor.model_copy(update={"k": 8192}), target=Target.parse("sm_90a")).sku.backend == "cuda"
    x = torch.randperm(20000).float()[None]
    assert torch.equal(found(x, 20000).positions.long(), x.argsort(descending=True))


@pytest.mark.parametrize("subject", BACKENDS)
def test_rows_that_are_not_valid_stay(subject):
    args = found(torch.randn(3, 9), 2, subject, num_valid=torch.tensor([2], dtype=torch.int32))
    assert (args.positions[:2] != 77).all()
    assert (args.positions[2] == 77).all()


@pytest.mark.parametrize("subject", BACKENDS)
def test_equal_values_and_neighbouring_ones(subject):
    assert found(torch.zeros(1, 3000), 2048, subject).positions.tolist() == [list(range(2048))]
    bits = torch.randperm(500).int() - 250
    x = (bits + 0x41800000).view(torch.float32)[None]
    assert torch.equal(found(x, 99, subject).positions.long(), x.topk(99).indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_is_that_of_torch_for_distinct_values(dtype):
    x = (torch.randperm(400)[None] - 200.0).to(dtype)[:, torch.randperm(400)]
    x = x[:, :200] if dtype != torch.float32 else x
    unique = x[0].unique().numel() == x.numel()
    args = found(x, 40)
    assert torch.equal(args.values, x.topk(40).values)
    assert not unique or torch.equal(args.positions.long(), x.topk(40).indices)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seed", range(4))
def test_random_problems(place, seed):
    descriptor = problems.random_descriptor("topk", seed)
    hold(emulator.subject(descriptor) if place == "host" else Subject(descriptor, "cuda", "cuda"), seed)


@pytest.mark.parametrize("place", PLACES)
def test_a_row_has_its_bits_in_any_batch(place):
    shown = determinism.batch_invariance(of(place), determinism.Campaign(3, 2, 5, 1), seed=1)
    assert shown.different == 0 < shown.compared


@emulator.needed
def test_no_number_of_ctas_changes_a_bit():
    args = of("host").args(5)
    want = found(args.x, 20, emulator.subject)
    for ctas, held in ((2, 10**5), (4, 0), (1, 256)):
        with split_as(ctas, held):
            got = found(args.x, 20, emulator.subject)
        assert same_bits(got.values, want.values)
        assert same_bits(got.positions, want.positions)


@pytest.mark.gpu
@pytest.mark.parametrize("fields", [{}, {"vocab": 151936, "k": 2048, "dtype": "bf16"}], ids=str)
def test_runs_repeat_bitwise(fields):
    assert determinism.run_to_run(of("gpu", **fields), 40, seed=1).different == 0


def test_wrong_values_are_seen():
    args = found(torch.randn(3, 50), 5)
    descriptor = TopKDescriptor(total_num_rows=3, vocab=50, k=5)
    sku = Plan.select(descriptor, target=Target.cpu()).sku
    assert numerics.check(descriptor, args, sku).worst == 0
    args.positions[1] = args.positions[1].flip(0)
    assert numerics.check(descriptor, args, sku).worst == math.inf


def test_a_window_ends_with_the_row_at_the_latest(monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "indices")
    forget_selections()
    x = torch.arange(7.0)[None]
    assert found(x, 2, **windows((0, 7))).positions.tolist() == [[6, 5]]
    for pair in ((0, 8), (-1, 7), (8, 8)):
        with pytest.raises(IndexDataError):
            found(x, 2, **windows(pair))


def test_k_is_bounded():
    with pytest.raises(DescriptorError, match="k expected"):
        TopKDescriptor(total_num_rows=1, vocab=5000, k=2**20 + 1)
