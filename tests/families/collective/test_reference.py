"""Ops over several ranks against plain torch in one process, for several numbers of ranks."""

import math

import pytest
import torch

from opfacade import Plan, Preference, load_descriptor
from opfacade.errors import DescriptorError, GroupError
from opfacade.plans.collective import (
    EXAMPLES,
    CollectiveArgs,
    CollectiveDescriptor,
    LogprobAcrossArgs,
    LogprobAcrossDescriptor,
    MergeAcrossArgs,
    MergeAcrossDescriptor,
)
from opfacade.testing import inputs, numerics
from tests.support.local_ranks import on_ranks, same

WORLDS = (1, 2, 3, 5, 8)


@pytest.mark.parametrize("descriptor", EXAMPLES, ids=lambda d: f"{d.op}-{d.dtype}")
def test_examples_stay_within_their_bound(descriptor):
    plan = Plan.select(descriptor)
    args = inputs.make_args(descriptor, seed=3)
    before = numerics.snapshot(descriptor, args)
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku, before=before).worst <= 1
    assert load_descriptor(descriptor.model_dump_json()) == descriptor


def rows_of(count, width, seed, dtype=torch.float32):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)).to(dtype)


def run(descriptor, x, group, out_rows):
    out = torch.full((out_rows, descriptor.width), math.nan, dtype=x.dtype)
    Plan.select(descriptor).run(CollectiveArgs(x=x, out=out, group=group))
    return out


def in_order(parts):
    """The sum in the order of the ranks, one f32 addition at a time, rounded once."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts[0].dtype)


@pytest.mark.parametrize("world", WORLDS)
def test_plain_collectives_are_those_of_a_list(world):
    counts, width = tuple((3 * r + 1) % 5 for r in range(world)), 7
    total, most = sum(counts), max(counts)
    d = {
        kind: CollectiveDescriptor(world=world, kind=kind, counts=counts, width=width, dtype="bf16")
        for kind in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
    }
    full = [rows_of(total, width, r, torch.bfloat16) for r in range(world)]
    places = [rows_of(most, width, 50 + r, torch.bfloat16) for r in range(world)]

    def call(group):
        r = group.rank
        return (
            run(d["all_gather"], places[r], group, total),
            run(d["all_reduce"], full[r], group, total),
            run(d["reduce_scatter"], full[r], group, most),
            run(d["all_to_all"], full[r], group, world * most),
        )

    found = on_ranks(world, call)
    start = [sum(counts[:r]) for r in range(world)]
    assert same([gathered for gathered, *_ in found])
    assert torch.equal(found[0][0], torch.cat([places[r][: counts[r]] for r in range(world)]))
    assert same([reduced for _, reduced, *_ in found])
    assert torch.equal(found[0][1], in_order(full))
    for r, (_, _, scattered, swapped) in enumerate(found):
        own = slice(start[r], start[r] + counts[r])
        assert torch.equal(scattered[: counts[r]], in_order(full)[own])
        assert scattered[counts[r] :].isnan().all()
        for s in range(world):
            assert torch.equal(swapped[s * most : s * most + counts[r]], full[s][own])


def attention(q, k, v, keys):
    """o and lse of one query row per head over the given keys, in f64."""
    if not len(keys):
        return torch.full((q.shape[0], v.shape[2]), math.nan, dtype=torch.float64), torch.full((q.shape[0],), -math.inf)
    scores = torch.einsum("hd,khd->hk", q, k[keys])
    return torch.einsum("hk,khd->hd", scores.softmax(1), v[keys]), scores.logsumexp(1)


def partials(q, k, v, shares):
    """o_part [states, 1, heads, dim] and lse_part for the given subsets of the keys."""
    o, lse = zip(*(attention(q, k, v, keys) for keys in shares), strict=True)
    return torch.stack(o)[:, None].float(), torch.stack(lse)[:, None].float()


def problem(seed=0, tokens=97, heads=8, dim=16):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=g).double() for shape in ((heads, dim), (tokens, heads, dim), (tokens, heads, dim))]


@pytest.mark.parametrize("scatter", ["none", "heads"])
@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_the_merge_over_ranks_equals_attention_over_all_keys(world, scatter):
    """With several ranks, rank 0 has no keys and its o is NaN; a sink is counted once."""
    q, k, v = problem()
    owner = torch.arange(97) % max(1, world - 1) + (world > 1)
    sinks = torch.linspace(-1, 1, 8)
    d = MergeAcrossDescriptor(world=world, total_num_rows=1, num_heads=8, head_dim=16, dtype="f32", scatter=scatter, sinks=True)

    def call(group):
        o_part, lse_part = partials(q, k, v, [(owner == group.rank).nonzero()[:, 0]])
        args = MergeAcrossArgs(
            o_part=o_part, lse_part=lse_part, sinks=sinks, group=group,
            o=torch.full((1, d.kept_heads, 16), math.nan), lse=torch.full((1, d.kept_heads), math.nan),
        )  # fmt: skip
        Plan.select(d).run(args)
        return args.o, args.lse

    found = on_ranks(world, call)
    o, lse = (torch.cat(parts, 1)[:, :8] for parts in zip(*found, strict=True))
    scores = torch.cat([torch.einsum("hd,khd->hk", q, k), sinks[:, None].double()], 1)
    torch.testing.assert_close(lse[0].double(), scores.logsumexp(1), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(o[0].double(), torch.einsum("hk,khd->hd", scores.softmax(1)[:, :-1], v), rtol=1e-5, atol=1e-6)
    assert scatter == "heads" or same([o for o, _ in found])


def test_merges_have_the_bits_of_one_rank():
    """Chunks of 8 keys, one state per chunk, are distributed round-robin over the ranks: the bits do not depend on the number
    of ranks, in either exchange dtype."""
    q, k, v = problem(1, 77)
    chunks = [torch.arange(first, min(77, first + 8)) for first in range(0, 77, 8)]
    for exchange in (None, "bf16"):
        found = []
        for world in WORLDS:
            states = -(-len(chunks) // world)
            d = MergeAcrossDescriptor(
                world=world, states=states, total_num_rows=1, num_heads=8, head_dim=16, dtype="f32", exchange_dtype=exchange
            )

            def call(group, d=d, world=world):
                own = [chunks[c] if c < len(chunks) else [] for c in range(group.rank, d.states * world, world)]
                o_part, lse_part = partials(q, k, v, own)
                args = MergeAcrossArgs(
                    o_part=o_part, lse_part=lse_part, group=group, o=torch.full((1, 8, 16), math.nan), lse=torch.empty(1, 8)
                )
                Plan.select(d, prefer=Preference(require={"rank_invariant": "world"})).run(args)
                return args.o

            found += on_ranks(world, call)
        assert same(found)
        assert not found[0].isnan().any()


def test_a_row_without_keys_on_any_rank_is_zero():
    d = MergeAcrossDescriptor(world=2, total_num_rows=1, num_heads=2, head_dim=4, dtype="bf16")

    def call(group):
        args = MergeAcrossArgs(
            o_part=torch.full((1, 1, 2, 4), math.nan, dtype=torch.bfloat16), lse_part=torch.full((1, 1, 2), -math.inf),
            o=torch.full((1, 2, 4), math.nan, dtype=torch.bfloat16), lse=torch.zeros(1, 2), group=group,
        )  # fmt: skip
        Plan.select(d).run(args)
        return args.o, args.lse

    for o, lse in on_ranks(2, call):
        assert (o == 0).all()
        assert (lse == -math.inf).all()


def logprobs(world, logits, label, loss, tile):
    shard = -(-logits.shape[1] // world)
    shard = -(-shard // tile) * tile if (world - 1) * (-(-shard // tile) * tile) < logits.shape[1] else shard
    d = LogprobAcrossDescriptor(
        world=world, total_num_rows=len(logits), vocab=logits.shape[1], shard=shard, dtype="f32", loss=loss, tile=tile
    )

    def call(group):
        own = torch.full((len(logits), shard), math.nan)  # The op must not read the padding.
        part = logits[:, group.rank * shard : (group.rank + 1) * shard]
        own[:, : part.shape[1]] = part
        args = LogprobAcrossArgs(
            logits=own, label=label, out=torch.empty(len(logits)), lse=torch.empty(len(logits)), group=group
        )
        Plan.select(d).run(args)
        return torch.stack([args.out, args.lse])

    return on_ranks(world, call)


def test_logprobs_have_the_bits_of_one_rank():
    """103 tokens in tiles of 4: shards of 104, 52, 36 and 16 tokens are multiples of the tile."""
    logits = torch.randn(6, 103, generator=torch.Generator().manual_seed(1)) * 5
    logits[0, :52] = -math.inf
    target = torch.tensor([60, 102, 51, 52, -100, 103], dtype=torch.int32)
    found = [bits for world in (1, 2, 3, 7) for bits in logprobs(world, logits, target, False, 4)]
    assert same(found)
    want = logits.double().log_softmax(1).gather(1, target.long().clamp(0, 102)[:, None])[:, 0]
    want[4:] = 0
    torch.testing.assert_close(found[0][0].double(), want, rtol=2**-23, atol=1e-12)
    torch.testing.assert_close(found[0][1].double(), logits.double().logsumexp(1), rtol=2**-23, atol=1e-12)


def test_cross_entropy_equals_torch():
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(2))
    target = torch.tensor([3, 49, -100, 0, 25], dtype=torch.int32)
    want = torch.nn.functional.cross_entropy(logits.double(), target.long(), reduction="none")
    for found in logprobs(3, logits, target, True, 512):
        torch.testing.assert_close(found[0].double(), want, rtol=2**-23, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "fields", "match"),
    [
        (CollectiveDescriptor, {"world": 2, "kind": "all_gather", "counts": (1,), "width": 1, "dtype": "f32"}, "counts"),
        (CollectiveDescriptor, {"world": 73, "kind": "all_gather", "counts": (1,), "width": 1, "dtype": "f32"}, "world"),
        (
            MergeAcrossDescriptor,
            {"world": 2, "total_num_rows": 1, "num_heads": 3, "head_dim": 8, "dtype": "f32", "scatter": "heads"},
            "num_heads",
        ),
        (LogprobAcrossDescriptor, {"world": 3, "total_num_rows": 1, "vocab": 10, "shard": 5, "dtype": "f32"}, "shard"),
    ],
)
def test_contradictory_fields_are_refused(kind, fields, match):
    with pytest.raises(DescriptorError, match=match):
        kind(**fields)


def test_a_call_needs_a_group_of_the_world_size_of_its_plan():
    d = CollectiveDescriptor(world=2, kind="all_reduce", counts=(1, 1), width=4, dtype="f32")
    args = CollectiveArgs(x=torch.zeros(2, 4), out=torch.ones(2, 4))
    plan = Plan.select(d)
    with pytest.raises(GroupError, match="OPF-N007"):
        plan.run(args)
    assert not plan.can_implement(args)
    assert (args.out == 1).all()

    def call(group):
        return Plan.select(d).can_implement(CollectiveArgs(x=torch.zeros(2, 4), out=torch.ones(2, 4), group=group))

    assert all(verdict.issues[0].code == "OPF-N007" for verdict in on_ranks(3, call))
