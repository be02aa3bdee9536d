"""Draws over a sharded vocabulary: the token equals the token of one rank, for all filters, ties and shards."""

import math

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda import collective
from opfacade.backends.reference.sampling.philox import words, words_at
from opfacade.errors import DescriptorError
from opfacade.plans.collective import SampleAcrossArgs, SampleAcrossDescriptor
from opfacade.plans.sampling import SampleArgs, SampleDescriptor
from tests.support.local_ranks import LocalGroup, on_ranks, same

WORLDS = (1, 2, 3, 5)
ROWS, VOCAB = 24, 203
FILTERS = (
    {},
    {"temperature": False, "stream": 2**32 - 1},
    {"top_k": True},
    {"top_k": True, "max_top_k": 9, "top_p": True, "min_p": True},
    {"top_k": True, "max_top_k": 150, "top_p": True, "order": "joint"},
    {"top_k": True, "max_top_k": 20, "top_p": True, "order": "joint", "min_p": True},
    {"top_p": True},
    {"min_p": True},
)


def problem(seed=0):
    """Logits with ties, NaN, infinities and -0. One row has no candidate tokens, and one row has all its candidate tokens on
    one rank."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(ROWS, VOCAB, generator=g) * torch.linspace(0.1, 6, ROWS)[:, None]
    logits[::3] = (logits[::3] * 2).round() / 2
    logits[1, ::7], logits[2, 5], logits[3, 3:9], logits[4, 200] = math.nan, math.inf, 2.0**120, -0.0
    logits[5], logits[6, :190], logits[7] = -math.inf, -math.inf, 1.0
    values = {
        "temperature": torch.rand(ROWS, generator=g) * 2 * (torch.rand(ROWS, generator=g) > 0.2),
        "top_k": torch.randint(-1, 60, (ROWS,), generator=g, dtype=torch.int32),
        "top_p": torch.rand(ROWS, generator=g) * 1.1,
        "min_p": torch.rand(ROWS, generator=g) * 0.2 - 0.02,
        "seed": torch.randint(-(2**62), 2**62, (ROWS,), generator=g),
        "offset": torch.arange(ROWS),
    }
    values["top_k"][7], values["top_p"][7] = 13, 0.5  # the filters keep the lowest ids of 203 equal logits
    values["temperature"][7] = 1.0
    return logits, values


def given(d, values):
    return {n: values[n] for n in ("temperature", "top_k", "top_p", "min_p") if getattr(d, n)} | {
        n: values[n] for n in ("seed", "offset")
    }


def at_once(logits, values, fields):
    """The tokens of `sample` on one rank, and their validity."""
    d = SampleDescriptor(total_num_rows=ROWS, vocab=VOCAB, **fields)
    args = SampleArgs(logits=logits, token=torch.zeros(ROWS, dtype=torch.int32), valid=torch.zeros(ROWS, dtype=torch.uint8),
                      **given(d, values))  # fmt: skip
    Plan.select(d, prefer=Preference(backend="reference")).run(args)
    return args.token, args.valid


def across(world, logits, values, fields, made=None):
    shard = -(-VOCAB // world)
    d = SampleAcrossDescriptor(world=world, total_num_rows=ROWS, vocab=VOCAB, shard=shard, **fields)

    def call(group):
        own = torch.full((ROWS, shard), math.inf)  # The op must not read the padding.
        part = logits[:, group.rank * shard : (group.rank + 1) * shard]
        own[:, : part.shape[1]] = part
        args = SampleAcrossArgs(
            logits=own, token=torch.full((ROWS,), 77, dtype=torch.int32), valid=torch.full((ROWS,), 7, dtype=torch.uint8),
            group=group, **given(d, values), **(made or {}),
        )  # fmt: skip
        Plan.select(d, prefer=Preference(require={"rank_invariant": "world"})).run(args)
        return args.token, args.valid

    return d, on_ranks(world, call)


@pytest.mark.parametrize("fields", FILTERS, ids=lambda f: "-".join(f) or "none")
def test_a_token_is_that_of_one_rank(fields):
    for seed in range(3):
        logits, values = problem(seed)
        token, valid = at_once(logits, values, fields)
        assert token[5] == -1
        assert valid.sum() == ROWS - 1
        for world in WORLDS:
            for got in across(world, logits, values, fields)[1]:
                assert same([got[0], token]), world
                assert same([got[1], valid])


def test_the_filters_keep_the_lowest_ids_of_equal_logits():
    """The filters keep 13 of 203 equal logits, or the 102 that have half of the mass. The test derives the ids from the rule,
    not from another implementation."""
    values = problem()[1] | {
        "temperature": torch.ones(ROWS),
        "top_k": torch.full((ROWS,), 13, dtype=torch.int32),
        "top_p": torch.full((ROWS,), 0.5),
    }
    for fields, kept in (({"top_k": True}, 13), ({"top_p": True}, 102), ({"top_k": True, "top_p": True}, 7)):
        for tokens, _ in across(3, torch.ones(ROWS, VOCAB), values, fields)[1]:
            assert kept > tokens.max() > kept * 0.6, fields
            assert len(tokens.unique()) > min(kept - 3, 12)


def test_a_list_needs_one_exchange_and_no_rank_sends_its_logits(monkeypatch):
    """Bytes sent to each other rank: 16 per row without filters, 8 per listed token, otherwise at most eight times 256 sums."""
    rounds = []
    plain = LocalGroup.exchange

    def counting(self, descriptor, outgoing, facts):
        if self.rank == 0:
            rounds.append(outgoing[1].numel())
        return plain(self, descriptor, outgoing, facts)

    monkeypatch.setattr(LocalGroup, "exchange", counting)
    logits, values = problem()
    want = {
        (): [16],
        ("top_k", "max_top_k"): [8 * 9],
        ("min_p",): [4, 16],
        ("top_p",): [4, *[2048] * 4, 16],
    }
    for names, sizes in want.items():
        rounds.clear()
        fields = {name: 9 if name == "max_top_k" else True for name in names}
        d, _ = across(2, logits, values, fields)
        assert rounds == [ROWS * size for size in sizes], names
        assert d.symmetric_size >= 2 * 2 * ROWS * max(sizes)


def test_rows_past_num_valid_are_not_written():
    logits, values = problem()
    token, _ = at_once(logits, values, {"top_p": True})
    for count, real in ((0, 0), (9, 9), (99, 0)):
        counter = {"num_valid": torch.tensor([count], dtype=torch.int32)}
        for got, valid in across(2, logits, values, {"top_p": True, "num_valid": True}, counter)[1]:
            assert same([got[:real], token[:real]])
            assert (got[real:] == 77).all()
            assert (valid[real:] == 7).all()


def test_random_words_of_a_range_of_tokens_equal_those_of_the_whole_row():
    seed, offset = torch.tensor([5, -(2**40)]), torch.tensor([2**33, 7])
    whole = words(seed, offset, 3, 41)
    assert same([words(seed, offset, 3, 10, 27), whole[:, 27:37].clone()])
    ids = torch.tensor([[40, 0, 3], [1, 1, 22]])
    assert same([words_at(seed, offset, 3, ids), whole.gather(1, ids)])


@pytest.mark.parametrize(
    ("fields", "match"),
    [({"world": 3, "shard": 5}, "shard"), ({"shard": 9}, "shard"), ({"max_top_k": 4}, "max_top_k"), ({"stream": -1}, "stream")],
)
def test_contradictory_fields_are_refused(fields, match):
    with pytest.raises(DescriptorError, match=match):
        SampleAcrossDescriptor(**({"world": 1, "total_num_rows": 1, "vocab": 10, "shard": 10} | fields))


@pytest.mark.parametrize("world", [1, 2])
def test_the_torch_draw_between_gpus_gives_the_largest_logit_at_temperature_0(world):
    """This launcher for GPUs draws for problems without filters, for which no kernel lists tokens."""
    d = SampleAcrossDescriptor(world=world, total_num_rows=3, vocab=10, shard=10 // world)
    logits = torch.tensor([[0.0, 9, 1, 2, 3, 4, 5, 6, 7, 8], [1, 0, 0, 0, 0, 0, 0, 2, 0, 0], [0, 0, 0, 0, 3, 1, 1, 1, 1, 1]])
    launcher = collective._sample_launcher(d, Target.parse("sm_90a"), None, False)

    def call(group):
        own = logits[:, group.rank * d.shard : (group.rank + 1) * d.shard].contiguous()
        zeros = torch.zeros(3, dtype=torch.int64)
        args = SampleAcrossArgs(
            logits=own, temperature=torch.zeros(3), seed=zeros, offset=zeros, group=group,
            token=torch.full((3,), 77, dtype=torch.int32), valid=torch.full((3,), 7, dtype=torch.uint8),
        )  # fmt: skip
        launcher(args, None)
        return args.token, args.valid

    for token, valid in on_ranks(world, call):
        assert (token.tolist(), valid.tolist()) == ([1, 7, 4], [1, 1, 1])
