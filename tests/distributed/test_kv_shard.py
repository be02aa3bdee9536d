"""Decode over a sharded cache: the map of tokens against a loop, and outputs against one rank with the whole cache."""

import math
from functools import partial

import pytest
import torch

from opfacade import Plan, load_descriptor
from opfacade.errors import DescriptorError
from opfacade.plans.attention import (
    BatchPagedDecodeArgs,
    BatchPagedDecodeDescriptor,
    KvShard,
    PagedKvCacheDescriptor,
)
from opfacade.plans.collective import MergeAcrossArgs, MergeAcrossDescriptor
from opfacade.plans.kv_cache import NOWHERE, PagedKvAppendArgs, PagedKvAppendDescriptor
from opfacade.plans.mla import BatchMlaDecodeArgs, BatchMlaDecodeDescriptor, PagedLatentCacheDescriptor
from tests.support.local_ranks import on_ranks, same

PAGE, HEADS, KV, DIM = 4, 4, 2, 64


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("interleave", [1, 4, 12])
def test_the_map_is_that_of_a_loop(world, interleave):
    shard, counts = KvShard(world=world, interleave=interleave), [0] * world
    for length in range(101):
        for rank in range(world):
            assert int(shard.local_lens(torch.tensor(length), rank)) == counts[rank]
        rank = length // interleave % world
        position = torch.tensor(length)
        assert [int(shard.owner(position)), int(shard.slots(position))] == [rank, counts[rank]]
        assert int(shard.positions(torch.tensor(counts[rank]), rank)) == length
        counts[rank] += 1


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_of_a_replicated_cache_has_every_token_where_it_is(rank):
    shard, tokens = KvShard(world=3, interleave=2, placement="replicated"), torch.arange(20)
    assert torch.equal(shard.slots(tokens), tokens)
    assert torch.equal(shard.positions(tokens, rank), tokens)
    assert torch.equal(shard.local_lens(tokens, rank), tokens)
    assert not shard.owner(tokens).any()


def cache(tokens):
    pages = max(1, -(-tokens // PAGE))
    return PagedKvCacheDescriptor(
        num_total_pages=pages, page_size=PAGE, num_kv_heads=KV, head_dim=DIM, dtype="f32", layout="NHD"
    )


def pool(rows):
    """Rows [tokens, ..] in pages, the rest NaN."""
    pages = max(1, -(-len(rows) // PAGE))
    found = torch.full((pages * PAGE, *rows.shape[1:]), math.nan)
    found[: len(rows)] = rows
    return found.view(pages, PAGE, *rows.shape[1:])


def decode(q, k, v, shard=None):
    """o and lse of one request whose cache is these rows."""
    d = BatchPagedDecodeDescriptor(batch_size=1, num_qo_heads=HEADS, paged_kv=cache(len(k)), page_table="block", shard=shard)
    pages = torch.arange(d.paged_kv.num_total_pages, dtype=torch.int32)[None]
    args = BatchPagedDecodeArgs(
        q=q, k_data=pool(k), v_data=pool(v), block_table=pages, kv_lens=torch.tensor([len(k)], dtype=torch.int32),
        o=torch.full((1, HEADS, DIM), math.nan), lse=torch.full((1, HEADS), math.nan),
    )  # fmt: skip
    Plan.select(d).run(args)
    return args.o, args.lse


def latent(q, k, v, shard=None):
    """The same for a latent cache, whose rows are keys and values: the first 32 and the last 16 elements of k."""
    rows = k[:, 0]
    pages = PagedLatentCacheDescriptor(
        num_total_pages=max(1, -(-len(k) // PAGE)), page_size=PAGE, latent_dim=48, rope_dim=16, dtype="f32"
    )
    d = BatchMlaDecodeDescriptor(
        batch_size=1, num_qo_heads=HEADS, paged_kv=pages, page_table="block", sm_scale=0.125, shard=shard
    )
    table = torch.arange(pages.num_total_pages, dtype=torch.int32)[None]
    args = BatchMlaDecodeArgs(
        q_nope=q[..., :48].contiguous(), q_pe=q[..., 48:].contiguous(), ckv=pool(rows[:, :48]), kpe=pool(rows[:, 48:]),
        block_table=table, kv_lens=torch.tensor([len(k)], dtype=torch.int32),
        o=torch.full((1, HEADS, 48), math.nan), lse=torch.full((1, HEADS), math.nan),
    )  # fmt: skip
    Plan.select(d).run(args)
    return args.o, args.lse


def inputs(tokens):
    g = torch.Generator().manual_seed(tokens)
    return [torch.randn(*shape, generator=g) for shape in ((1, HEADS, DIM), (tokens, KV, DIM), (tokens, KV, DIM))]


def own_rows(shard, rank, rows):
    return rows[shard.owner(torch.arange(len(rows))) == rank]


def merged(world, parts, group):
    """Merges lists of (o, lse), one state each."""
    o, lse = (torch.stack(found) for found in zip(*parts, strict=True))
    d = MergeAcrossDescriptor(
        world=world, states=len(parts), total_num_rows=1, num_heads=HEADS, head_dim=o.shape[-1], dtype="f32"
    )
    args = MergeAcrossArgs(o_part=o, lse_part=lse, o=torch.empty_like(o[0]), lse=torch.empty_like(lse[0]), group=group)
    Plan.select(d).run(args)
    return args.o


@pytest.mark.parametrize("attend", [decode, latent])
@pytest.mark.parametrize(("world", "interleave", "tokens"), [(2, 1, 41), (3, 4, 50), (4, 8, 7), (8, 4, 90)])
def test_a_sharded_decode_is_that_of_one_rank(attend, world, interleave, tokens):
    """With 7 tokens most ranks have none."""
    shard, (q, k, v) = KvShard(world=world, interleave=interleave), inputs(tokens)

    def call(group):
        own = [own_rows(shard, group.rank, rows) for rows in (k, v)]
        assert len(own[0]) == int(shard.local_lens(torch.tensor(tokens), group.rank))
        return merged(world, [attend(q, *own, shard)], group)

    found = on_ranks(world, call)
    assert same(found)
    torch.testing.assert_close(found[0], attend(q, k, v)[0], rtol=1e-5, atol=1e-6)


def test_fixed_chunks_have_the_bits_of_one_rank():
    q, k, v = inputs(50)
    found, chunk = [], 8
    for world in (1, 2, 3, 5):
        shard = KvShard(world=world, interleave=chunk)
        states = -(-50 // (chunk * world))

        def call(group, shard=shard, states=states, world=world):
            own = [own_rows(shard, group.rank, rows) for rows in (k, v)]
            parts = [decode(q, *(rows[s * chunk : (s + 1) * chunk] for rows in own)) for s in range(states)]
            return merged(world, parts, group)

        found += on_ranks(world, call)
    assert same(found)


def test_an_append_stores_the_tokens_of_its_rank_alone():
    """10 tokens of two requests with 6 new ones each, pages distributed round-robin over 3 ranks; angles are those of global
    positions.
    """
    world, shard = 3, KvShard(world=3, interleave=PAGE)
    pages = PagedKvCacheDescriptor(num_total_pages=4, page_size=PAGE, num_kv_heads=KV, head_dim=DIM, dtype="f32", layout="NHD")
    d = PagedKvAppendDescriptor(
        batch_size=2, total_num_rows=12, paged_kv=pages, page_table="block", rope="half", max_kv_indices=12
    )
    whole = d.model_copy(update={"paged_kv": pages.model_copy(update={"num_total_pages": 12})}).revalidated()
    g = torch.Generator().manual_seed(1)
    new, angles = torch.randn(12, KV, DIM, generator=g), torch.randn(16, DIM, generator=g)

    def append(descriptor, table):
        empty = torch.full((descriptor.paged_kv.num_total_pages, PAGE, KV, DIM), math.nan)
        args = PagedKvAppendArgs(
            k_new=new, v_new=new + 1, append_indptr=torch.tensor([0, 6, 12], dtype=torch.int32), k_data=empty,
            v_data=empty.clone(), block_table=table, kv_lens=torch.tensor([10, 10], dtype=torch.int32), cos_sin_cache=angles,
        )  # fmt: skip
        Plan.select(descriptor).run(args)
        return args.k_data, args.v_data

    want = append(whole, torch.arange(12, dtype=torch.int32).view(2, 6))
    for rank in range(world):
        table = shard.append_table(torch.arange(4, dtype=torch.int32).view(2, 2), rank, PAGE)
        assert (table == NOWHERE).sum() == 8
        for pool, full in zip(append(d, table), want, strict=True):
            for request in range(2):
                for page in range(2):
                    expected = full[request * 6 + page * world + rank]
                    torch.testing.assert_close(pool[request * 2 + page], expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("world", "interleave"), [(1, 1), (2, 1), (3, 2), (2, 6), (8, 3)])
def test_new_rows_of_shards_below_a_page_are_those_of_a_loop(world, interleave):
    """Requests with 0, 1 and several new rows over cached tokens, and two rows of no request."""
    shard, total = KvShard(world=world, interleave=interleave), 16
    new, lens = (5, 0, 1, 8), torch.tensor([5, 3, 9, 21], dtype=torch.int32)
    indptr = torch.tensor([0, 5, 5, 6, 14], dtype=torch.int32)
    stored = torch.randn(total, KV, DIM)
    for rank in range(world):
        own = shard.append_rows(indptr, lens, rank, total)
        want, ends = [], [0]
        for b, n in enumerate(new):
            at = [int(lens[b]) - n + i for i in range(n)]
            want += [(int(indptr[b]) + i, p) for i, p in enumerate(at) if p // interleave % world == rank]
            ends.append(len(want))
        assert own.append_indptr.tolist() == ends
        assert list(zip(own.rows[: ends[-1]].tolist(), own.positions[: ends[-1]].tolist(), strict=True)) == want
        assert sorted(own.rows.tolist()) == list(range(total))
        assert torch.equal(own.kv_lens, shard.local_lens(lens, rank))
        d = cache(24 * len(new))
        k_data, v_data = (torch.full((24, PAGE, KV, DIM), math.nan) for _ in "kv")
        append = PagedKvAppendDescriptor(
            batch_size=len(new), total_num_rows=total, paged_kv=d, page_table="block", max_kv_indices=24
        )
        args = PagedKvAppendArgs(
            k_new=stored[own.rows], v_new=-stored[own.rows], append_indptr=own.append_indptr, kv_lens=own.kv_lens,
            k_data=k_data, v_data=v_data, block_table=torch.arange(24, dtype=torch.int32).view(len(new), 6),
        )  # fmt: skip
        Plan.select(append).run(args)
        for b in range(len(new)):
            flat = k_data[6 * b : 6 * b + 6].view(-1, KV, DIM)
            rows = [(shard.slots(torch.tensor(p)), r) for r, p in want if indptr[b] <= r < indptr[b + 1]]
            for slot, r in rows:
                assert torch.equal(flat[slot], stored[r])
            assert int((~flat.isnan()).all(-1).all(-1).sum()) == len(rows)


def test_gathered_tokens_are_found_by_rank_and_place():
    shard, lens = KvShard(world=3, interleave=2), (7, 0, 4)
    rows = [(b, p) for b, length in enumerate(lens) for p in range(length)]
    gathered = [(b, p) for rank in range(3) for b, p in rows if p // 2 % 3 == rank]
    assert [gathered[at] for at in shard.places(lens).tolist()] == rows
    assert shard.counts(lens) == tuple(sum(p // 2 % 3 == rank for _, p in rows) for rank in range(3))


def test_a_table_of_split_pages_is_refused():
    with pytest.raises(DescriptorError, match=r"interleave.*page_size=4"):
        KvShard(world=2, interleave=2).append_table(torch.zeros(1, 1, dtype=torch.int32), 0, PAGE)


DECODE = partial(BatchPagedDecodeDescriptor, batch_size=1, num_qo_heads=HEADS, paged_kv=cache(8))
ROWS = PagedLatentCacheDescriptor(num_total_pages=2, page_size=4, dtype="bf16")
LATENT = partial(BatchMlaDecodeDescriptor, batch_size=1, num_qo_heads=4, paged_kv=ROWS)


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (DECODE, "window_left", 5),
        (DECODE, "sinks", True),
        (DECODE, "return_lse", False),
        (LATENT, "window_left", 5),
        (LATENT, "q_len", 2),
    ],
)
def test_a_shard_refuses_what_a_merge_would_get_wrong(make, field, value):
    with pytest.raises(DescriptorError, match=field):
        make(shard=KvShard(world=2), **{field: value})
    make(shard=KvShard(world=2, placement="replicated"), **{field: value})
    make(shard=KvShard(world=1), **{field: value})


def test_a_shard_is_part_of_the_json_where_there_is_one():
    plain, cut = DECODE(), DECODE(shard=KvShard(world=2, interleave=16))
    assert "shard" not in plain.model_dump_json()
    assert load_descriptor(cut.model_dump_json()) == cut
    assert Plan.select(plain).sku.id == Plan.select(cut).sku.id
