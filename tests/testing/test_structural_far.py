"""Offsets past 2^31 and 2^32 elements: keys that are only in such pages of a pool of more than 8 GiB are found exactly."""

import math
from dataclasses import replace

import pytest
import torch

from opfacade.testing import inputs, matrix
from opfacade.testing.families.attention import structural
from opfacade.testing.families.attention.requests import bits, changed, same_bits
from opfacade.testing.subject import Subject

pytestmark = [pytest.mark.gpu, pytest.mark.heavy]
WHERE = ("cuda", "cuda")  # backend, device
PAGE, HEADS, DIM = 16, 8, 128
HALF = 2**31 // (PAGE * HEADS * DIM)  # pages of 2^31 elements
TOTAL = 2 * HALF + 64
SKIPPED = 2**32 // (2 * DIM) + 5  # rows of K that take 2^32 elements
NEAR = {"num_total_pages": 60, "page_size": PAGE, "num_kv_heads": HEADS, "head_dim": DIM, "dtype": "bf16"}
KINDS = {"decode": "decode-auto", "decode fixed": "decode-fixed-odd-window-block", "prefill": "prefill-off-causal"}


def near(kind, layout):
    descriptor = matrix.matrix()[kind]
    heads = {} if "append" in kind else {"num_qo_heads": 4 * HEADS}
    rows = {"total_num_rows": 300} if hasattr(descriptor, "total_num_rows") else {}
    return Subject(changed(descriptor, paged_kv=NEAR | {"layout": layout}, **heads, **rows), *WHERE)


def places(count):
    """Far pages: half of them right past 2^31 elements, the others the last of the pool."""
    return [HALF + i if i % 2 else TOTAL - 1 - i for i in range(count)]


def far_pool(pool, at):
    whole = torch.full((TOTAL, *pool.shape[1:]), math.nan, dtype=pool.dtype, device=WHERE[1])
    whole[at] = pool
    return whole


def moved(args):
    """The same call with its pages far out in pools that are NaN elsewhere."""
    where = places(args.k_data.shape[0])
    at = torch.tensor(where, device=WHERE[1])
    pools = {"k_data": far_pool(args.k_data, at), "v_data": far_pool(args.v_data, at)}
    if args.block_table is not None:
        used = args.block_table >= 0
        return replace(args, **pools, block_table=torch.where(used, at[args.block_table.clamp(min=0).long()].int(), -1)), at
    count = int(args.kv_indptr[-1])
    return replace(args, **pools, kv_indices=at[args.kv_indices[:count].long()].int()), at


def far_subject(subject, layout):
    pool = NEAR | {"layout": layout, "num_total_pages": TOTAL}
    return subject.on(changed(subject.descriptor, paged_kv=pool, max_kv_indices=NEAR["num_total_pages"]))


@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_reads_far_pages_exactly(kind, layout):
    subject = near(KINDS[kind], layout)
    args = subject.args(5)
    subject.run(args)
    call, _ = moved(args)
    distant = far_subject(subject, layout)
    out = replace(call, o=torch.full_like(args.o, math.nan), lse=torch.full_like(args.lse, math.nan))
    distant.run(out)
    assert same_bits(out.o, args.o)
    assert same_bits(out.lse, args.lse)
    assert missed(subject, args) == missed(distant, call) == []


def missed(subject, args):
    """Requests that did not find the needles planted in their pages, wherever these are."""
    args.q.zero_()
    wanted = [structural.plant(subject, args, *view, 9) for view in structural.request_views(subject, args)]
    subject.run(args)
    return [request for request, rows, want in wanted if not same_bits(args.o[rows] + 0.0, want + 0.0)]


@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_an_append_writes_far_pages_and_nothing_else(layout):
    subject = near("append-csr", layout)
    args = subject.args(5)
    call, at = moved(args)
    subject.run(args)
    far_subject(subject, layout).run(call)
    for far, pool in ((call.k_data, args.k_data), (call.v_data, args.v_data)):
        assert torch.equal(bits(far[at]), bits(pool))
        assert sum(int(part.isfinite().any(-1).sum()) for part in far.split(2**14)) == int(pool.isfinite().any(-1).sum())


def test_ragged_reads_far_rows_exactly():
    """One request of 2^32 elements that no row sees, followed by a second request."""
    base = matrix.matrix()["ragged-off-causal"]
    skipped, kv, q = SKIPPED, 700, 90
    descriptor = changed(base, batch_size=1, total_num_rows=q, total_kv_rows=kv)
    near_subject = Subject(descriptor, *WHERE)
    args = near_subject.args(5, inputs.DrawnLengths(q=[q], kv=[kv]))
    near_subject.run(args)
    long = {}
    for name in ("k", "v"):
        long[name] = torch.full((skipped + kv, 2, DIM), math.nan, dtype=torch.bfloat16, device=WHERE[1])
        long[name][skipped:] = getattr(args, name)
    indptr = {
        "q_indptr": torch.tensor([0, 0, q], dtype=torch.int32, device=WHERE[1]),
        "kv_indptr": torch.tensor([0, skipped, skipped + kv], dtype=torch.int32, device=WHERE[1]),
    }
    far = replace(args, **long, **indptr, o=torch.full_like(args.o, math.nan), lse=torch.full_like(args.lse, math.nan))
    near_subject.on(changed(base, batch_size=2, total_num_rows=q, total_kv_rows=skipped + kv)).run(far)
    assert same_bits(far.o, args.o)
    assert same_bits(far.lse, args.lse)
