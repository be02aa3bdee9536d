"""Statistics of draws: seeds are fixed, so a verdict never changes. test_race.py proves each draw."""

import math

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.plans.sampling import SampleArgs, SampleDescriptor

LEAST = 20  # minimum expectation of a class; smaller classes are pooled


def deviation(counts, shares):
    """Chi-square of counts as a normal deviate (Wilson and Hilferty); classes below LEAST are pooled."""
    expected = shares.double() * counts.sum()
    small = expected < LEAST
    pairs = [(counts[~small].double(), expected[~small])]
    if expected[small].sum() >= LEAST:
        pairs.append((counts[small].sum()[None].double(), expected[small].sum()[None]))
    got, want = (torch.cat(part) for part in zip(*pairs, strict=True))
    freedom, chi = len(got) - 1, float(((got - want) ** 2 / want).sum())
    return ((chi / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(2 / (9 * freedom))


def draws(logits, seeds, offsets, device="cpu", **given):
    """Tokens of one row of logits at each seed and offset."""
    count = len(seeds)
    backend = {"cpu": "reference", "cuda": "cuda"}[device]
    fields = dict.fromkeys(given, True) | {"temperature": "temperature" in given}
    descriptor = SampleDescriptor(total_num_rows=count, vocab=len(logits), indices=True, num_logits=1, **fields)
    make = {"top_k": torch.int32}
    args = SampleArgs(
        logits=logits[None].to(device), indices=torch.zeros(count, dtype=torch.int32, device=device),
        seed=seeds.to(device), offset=offsets.to(device),
        token=torch.empty(count, dtype=torch.int32, device=device), valid=torch.empty(count, dtype=torch.uint8, device=device),
        **{n: torch.full((count,), v, dtype=make.get(n, torch.float32), device=device) for n, v in given.items()},
    )  # fmt: skip
    target = Target.cpu() if device == "cpu" else Target.current()
    Plan.select(descriptor, Preference(backend=backend), target).run(args)
    return args.token.long()


def counted(tokens, vocab):
    return torch.bincount(tokens, minlength=vocab).cpu()


def spread_logits(vocab):
    return torch.randn(vocab, generator=torch.Generator().manual_seed(5)) * 1.5


@pytest.mark.parametrize("walk", ["offsets", "seeds"])
def test_draws_have_the_distribution_of_the_logits(walk):
    n, logits = 2**16, spread_logits(64)
    along, still = torch.arange(n), torch.full((n,), 12345)
    tokens = draws(logits, along, still) if walk == "seeds" else draws(logits, still, along)
    assert abs(deviation(counted(tokens, 64), logits.softmax(-1))) < 4


def test_a_wrong_temperature_is_seen():
    n, logits = 2**16, spread_logits(64)
    tokens = draws(logits, torch.arange(n), torch.zeros(n, dtype=torch.int64), temperature=1.05)
    assert deviation(counted(tokens, 64), logits.softmax(-1)) > 6


def test_filtered_draws_have_the_distribution_of_the_kept():
    n, logits = 2**15, spread_logits(64)
    inside = torch.zeros(64, dtype=torch.bool)
    inside[logits.topk(10).indices] = True
    tokens = draws(logits, torch.arange(n), torch.arange(n) * 3, top_k=10)
    assert abs(deviation(counted(tokens, 64)[inside], logits[inside].softmax(-1))) < 4


@pytest.mark.parametrize("step", [(0, 1), (1, 0), (0, 2**32), (2**32, 0), (1, 1)], ids=str)
def test_neighbours_are_independent(step):
    """32 equal classes; a table of the token and the token of the next seed, offset or both, and of their upper words."""
    n, logits = 2**15, torch.zeros(32)
    seeds, offsets = torch.arange(n) * 2, torch.arange(n) * 2 + 7
    first, second = draws(logits, seeds, offsets), draws(logits, seeds + step[0], offsets + step[1])
    assert abs(deviation(counted(first * 32 + second, 1024), torch.full((1024,), 1 / 1024))) < 4


def test_dependent_neighbours_are_seen():
    n, logits = 2**15, torch.zeros(32)
    first = draws(logits, torch.arange(n), torch.zeros(n, dtype=torch.int64))
    second = torch.where(torch.arange(n) % 20 == 0, first, first.roll(1))
    assert deviation(counted(first * 32 + second, 1024), torch.full((1024,), 1 / 1024)) > 6


@pytest.mark.gpu
@pytest.mark.heavy
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.999}], ids=str)
def test_sixteen_million_draws_of_a_thousand_classes(filters):
    total, part, logits = 2**24, 2**20, spread_logits(1000)
    counts = torch.zeros(1000, dtype=torch.int64)
    for start in range(0, total, part):
        offsets = torch.arange(start, start + part)
        counts += counted(draws(logits, torch.full((part,), 99), offsets, "cuda", **filters), 1000)
    shares = logits.double().softmax(-1)
    if filters:
        order = shares.sort(descending=True)
        kept = order.indices[(order.values.cumsum(0) - order.values) < filters["top_p"]]
        assert counts.sum() == counts[kept].sum()
        counts, shares = counts[kept], shares[kept] / shares[kept].sum()
    assert abs(deviation(counts, shares)) < 4
