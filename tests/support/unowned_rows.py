"""Calls with rows that no request owns and pages that no row sees, which every backend accepts at every level of validation."""

import math
from dataclasses import replace

import torch

from opfacade.plans.attention import (
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
    PagedKvCacheDescriptor,
)
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from opfacade.plans.mla import BatchMlaDecodeDescriptor, PagedLatentCacheDescriptor
from opfacade.testing import inputs

PADDING = 5
CACHE = PagedKvCacheDescriptor(num_total_pages=40, page_size=4, num_kv_heads=1, head_dim=64, dtype="f16", layout="HND")
LATENTS = PagedLatentCacheDescriptor(num_total_pages=40, page_size=4, dtype="f16")
_ROWS = {"batch_size": 3, "total_num_rows": 9 + PADDING}
PADDED = {
    "prefill": BatchPagedPrefillDescriptor(**_ROWS, num_qo_heads=2, causal=True, kv_split="off", paged_kv=CACHE),
    "prefill-fixed": BatchPagedPrefillDescriptor(
        **_ROWS, num_qo_heads=2, causal=False, kv_split=32, paged_kv=CACHE, page_table="block"
    ),
    "ragged": BatchRaggedPrefillDescriptor(
        **_ROWS, total_kv_rows=60, num_qo_heads=2, num_kv_heads=1, head_dim=64, causal=True, kv_split="auto", dtype="f16"
    ),
    "append": PagedKvAppendDescriptor(**_ROWS, paged_kv=CACHE),
    "append-block": PagedKvAppendDescriptor(**_ROWS, paged_kv=CACHE, page_table="block"),
}
WINDOWED = {
    "prefill": BatchPagedPrefillDescriptor(
        batch_size=3, total_num_rows=9, num_qo_heads=2, causal=True, kv_split="off", window_left=6, paged_kv=CACHE
    ),
    "prefill-block": BatchPagedPrefillDescriptor(
        batch_size=3, total_num_rows=9, num_qo_heads=2, causal=False, kv_split=32, window_left=6, paged_kv=CACHE,
        page_table="block",
    ),
    "decode": BatchPagedDecodeDescriptor(batch_size=3, num_qo_heads=2, window_left=6, paged_kv=CACHE),
    "decode-block": BatchPagedDecodeDescriptor(
        batch_size=3, num_qo_heads=2, kv_split=32, window_left=6, paged_kv=CACHE, page_table="block"
    ),
    "mla": BatchMlaDecodeDescriptor(batch_size=3, num_qo_heads=16, window_left=6, paged_kv=LATENTS),
    "mla-block": BatchMlaDecodeDescriptor(
        batch_size=3, num_qo_heads=16, kv_split="off", window_left=6, paged_kv=LATENTS, page_table="block"
    ),
    "mla-rows": BatchMlaDecodeDescriptor(batch_size=3, num_qo_heads=16, q_len=5, window_left=6, paged_kv=LATENTS),
    "append": PagedKvAppendDescriptor(batch_size=3, total_num_rows=9, paged_kv=CACHE),
    "append-block": PagedKvAppendDescriptor(batch_size=3, total_num_rows=9, paged_kv=CACHE, page_table="block"),
}  # fmt: skip
Q_LENS, KV_LENS = [4, 0, 5], [31, 18, 29]
HIDDEN = (-1, 40, 2**31 - 1, -(2**31))


def _call(descriptor, device):
    rows = None if descriptor.op.endswith("decode") else Q_LENS
    kv_lens = [20, 18, 22] if descriptor.op == "ragged_prefill" else KV_LENS
    return inputs.make_args(descriptor, seed=11, device=device, lengths=inputs.DrawnLengths(q=rows, kv=kv_lens))


def padded(kind, device="cpu"):
    """The call: rows from 9 on belong to no request, and are NaN. o, lse and pools are filled with a number."""
    args = _call(PADDED[kind], device)
    for name in ("q", "k_new", "v_new"):
        if hasattr(args, name):
            getattr(args, name)[9:] = math.nan
    for name in ("o", "lse", "k_data", "v_data"):
        if getattr(args, name, None) is not None and (name in ("o", "lse") or "append" in kind):
            getattr(args, name).fill_(7.0)
    return args


def without_padding(kind, args):
    """The same problem with 9 rows, on separate memory."""
    given = {name: getattr(args, name) for name in type(args).__slots__}
    own = {n: t[:9] if n in ("q", "o", "lse", "k_new", "v_new") else t for n, t in given.items() if t is not None}
    descriptor = type(PADDED[kind])(**dict(PADDED[kind]) | {"total_num_rows": 9})
    return descriptor, replace(args, **{name: tensor.clone() for name, tensor in own.items()})


def check_padded(kind, run, device="cpu"):
    """Rows of requests equal those without padding, and rows that no request owns are not written."""
    args = padded(kind, device)
    descriptor, right = without_padding(kind, args)
    run(PADDED[kind], args)
    run(descriptor, right)
    for name in ("o", "lse", "k_data", "v_data"):
        if getattr(args, name, None) is None:
            continue
        got, wanted = getattr(args, name), getattr(right, name)
        if name in ("o", "lse"):
            assert bool((got[9:] == 7.0).all()), f"{name} was written past q_indptr[-1]"
            got = got[:9]
        assert torch.equal(got.nan_to_num(9.0), wanted.nan_to_num(9.0)), name


def first_used(descriptor, request):
    """The first key that the request needs: of a row of its window, or of its new rows; None if it has no rows."""
    rows = getattr(descriptor, "q_len", 1) if descriptor.op.endswith("decode") else Q_LENS[request]
    if rows == 0:
        return None
    return KV_LENS[request] - rows - (0 if descriptor.op.endswith("append") else descriptor.window_left)


def pages_of(args, request):
    if args.block_table is not None:
        return args.block_table[request]
    return args.kv_indices[int(args.kv_indptr[request]) : int(args.kv_indptr[request + 1])]


def hidden(kind, device="cpu", ids=HIDDEN):
    """(The valid call, and the same call with invalid ids in all pages that no row sees, with separate outputs)."""
    descriptor = WINDOWED[kind]
    sound = _call(descriptor, device)
    names = [n for n, spec in descriptor.operands().items() if spec.written or n in ("block_table", "kv_indices")]
    args = replace(sound, **{n: getattr(sound, n).clone() for n in names})
    count = 0
    for request in range(3):
        first, pages = first_used(descriptor, request), pages_of(args, request)
        for i in range(-(-KV_LENS[request] // 4) if first is None else first // 4):
            pages[i] = ids[count % len(ids)]
            count += 1
    assert count > 4
    return sound, args


def check_hidden(kind, run, device="cpu"):
    """Ids of pages that no row sees change no bit."""
    sound, args = hidden(kind, device)
    run(WINDOWED[kind], sound)
    run(WINDOWED[kind], args)
    for name, spec in WINDOWED[kind].operands().items():
        if spec.written:
            assert torch.equal(getattr(args, name).nan_to_num(9.0), getattr(sound, name).nan_to_num(9.0)), name
