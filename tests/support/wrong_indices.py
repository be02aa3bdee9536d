"""Calls whose index tensors point out of bounds: a kernel clamps its reads and drops its writes."""

import math
from dataclasses import dataclass, replace
from functools import cache

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

MARGIN = 64  # rows, or entries, on either side of an operand
FAR = 2**31 - 1


def pool(pages=40, page_size=16, **fields):
    base = {"num_kv_heads": 1, "head_dim": 64, "dtype": "f16", "layout": "HND"}
    return PagedKvCacheDescriptor(num_total_pages=pages, page_size=page_size, **(base | fields))


LATENTS = PagedLatentCacheDescriptor(num_total_pages=9, page_size=16, dtype="f16")
_RAGGED = {"batch_size": 2, "total_num_rows": 8, "total_kv_rows": 40, "num_qo_heads": 2, "num_kv_heads": 1, "head_dim": 64}
_PREFILL = {"batch_size": 2, "total_num_rows": 8, "num_qo_heads": 2, "causal": True}
_FP8 = {"num_kv_heads": 1, "head_dim": 128, "dtype": "f8_e4m3"}
ATTENTION = {
    "ragged": BatchRaggedPrefillDescriptor(**_RAGGED, causal=True, dtype="f16", kv_split="off"),
    "ragged-auto": BatchRaggedPrefillDescriptor(**_RAGGED, causal=False, dtype="f16"),
    "ragged-fixed": BatchRaggedPrefillDescriptor(**_RAGGED, causal=True, dtype="f16", kv_split=32),
    "ragged-mask": BatchRaggedPrefillDescriptor(**_RAGGED, causal=False, dtype="f16", kv_split="off", custom_mask=True),
    "ragged-fp8": BatchRaggedPrefillDescriptor(
        **_RAGGED | {"head_dim": 128}, causal=True, dtype="f8_e4m3", q_scale="tensor", kv_split="off"
    ),
    "prefill": BatchPagedPrefillDescriptor(**_PREFILL, kv_split="off", paged_kv=pool()),
    "prefill-threads": BatchPagedPrefillDescriptor(**_PREFILL, kv_split="off", paged_kv=pool(page_size=5)),
    "prefill-block": BatchPagedPrefillDescriptor(**_PREFILL, kv_split="auto", paged_kv=pool(), page_table="block"),
    "prefill-many": BatchPagedPrefillDescriptor(
        **_PREFILL | {"batch_size": 300}, kv_split="off", paged_kv=pool(400), page_table="block"
    ),
    "prefill-fp8": BatchPagedPrefillDescriptor(**_PREFILL, kv_split=32, q_dtype="f16", paged_kv=pool(**_FP8)),
    "decode": BatchPagedDecodeDescriptor(batch_size=3, num_qo_heads=2, kv_split="off", paged_kv=pool()),
    "decode-auto": BatchPagedDecodeDescriptor(batch_size=3, num_qo_heads=2, max_kv_indices=2000, paged_kv=pool()),
    "decode-block": BatchPagedDecodeDescriptor(batch_size=3, num_qo_heads=2, page_table="block", paged_kv=pool()),
    "mla": BatchMlaDecodeDescriptor(batch_size=2, num_qo_heads=16, kv_split="off", paged_kv=LATENTS),
    "mla-block": BatchMlaDecodeDescriptor(batch_size=2, num_qo_heads=16, page_table="block", paged_kv=LATENTS),
    "mla-rows": BatchMlaDecodeDescriptor(batch_size=2, num_qo_heads=16, q_len=3, kv_split="off", paged_kv=LATENTS),
}  # fmt: skip


def embedded(tensor, fill):
    """(The whole, a view that equals `tensor` in its middle), with `fill` on either side along the first axis."""
    whole = torch.full((tensor.shape[0] + 2 * MARGIN, *tensor.shape[1:]), fill, device=tensor.device).to(tensor.dtype)
    inner = whole[MARGIN : MARGIN + tensor.shape[0]]
    inner.copy_(tensor)
    return whole, inner


def surrounded(args):
    """The call with every operand in the middle of a larger tensor: NaN beside values, valid entries beside indices."""
    given = {name: getattr(args, name) for name in type(args).__slots__}
    pairs = {n: embedded(t, _fill(n, t)) for n, t in given.items() if t is not None}
    return {n: whole for n, (whole, _) in pairs.items()}, replace(args, **{n: inner for n, (_, inner) in pairs.items()})


def _fill(name, tensor):
    if tensor.is_floating_point():
        return math.nan
    return 255 if name == "packed_mask" else 1


@dataclass(frozen=True)
class Wrong:
    """An entry, counted from the end if negative, and the value that a kernel must use instead; None: only out-of-bounds
    accesses are checked.
    """

    operand: str
    at: int
    value: int
    means: int | None

    def __str__(self):
        return f"{self.operand}[{self.at}]={self.value}"


def wrong_entries(descriptor, args):
    """The mistakes that a call permits, by its operands."""
    tables = descriptor.operands()
    if "q_indptr" in tables:
        rows = descriptor.total_num_rows
        yield from (Wrong("q_indptr", -1, value, rows) for value in (rows + 22, FAR))
        yield from (Wrong("q_indptr", 0, value, 0) for value in (-3, -FAR))
        yield from (Wrong("q_indptr", 1, value, None) for value in (rows + 3, -2, FAR, -FAR))
        yield Wrong("q_indptr", -1, -5, None)
    if "block_table" in tables:
        most = args.block_table.shape[1] * descriptor.paged_kv.page_size
        yield from (Wrong("kv_lens", at, value, most) for at in (0, -1) for value in (most + 1, most + 200, FAR))
        yield from (Wrong("kv_lens", -1, value, 0) for value in (-1, -FAR))
    elif "kv_indptr" in tables:
        most = descriptor.total_kv_rows if "k" in tables else args.kv_indices.numel()
        yield from (Wrong("kv_indptr", -1, value, most) for value in (most + 20, FAR))
        yield from (Wrong("kv_indptr", 0, value, 0) for value in (-4, -FAR))
        yield from (Wrong("kv_indptr", 1, value, None) for value in (most + 9, -FAR, FAR))
    if "last_page_len" in tables:
        size = descriptor.paged_kv.page_size
        yield from (Wrong("last_page_len", at, value, size) for at in (0, -1) for value in (size + 40, FAR))
        yield Wrong("last_page_len", -1, -FAR, None)


def check_all_reads(kind, run, device="cpu"):
    for wrong in wrong_entries(ATTENTION[kind], sound(kind, device)):
        try:
            check_reads(kind, wrong, run, device)
        except AssertionError as error:
            raise AssertionError(f"{wrong}: {error}") from error


def check_empty_request(kind, run, device="cpu"):
    """A request without pages has no keys, whatever its last page length, even if the sum of both would wrap; nor has a request
    with a negative last page length, by which validation marks a wrong request."""
    descriptor = ATTENTION[kind]
    keys = [20, *[1] * (descriptor.batch_size - 2), 0]
    args = inputs.make_args(descriptor, seed=7, device=device, lengths=inputs.DrawnLengths(kv=keys))
    run(descriptor, args)
    for value in (-1, -FAR - 1, FAR):
        wrong = with_entry(args, "last_page_len", -1, value)
        wrong = replace(wrong, **{name: torch.full_like(getattr(args, name), math.nan) for name in ("o", "lse")})
        run(descriptor, wrong)
        for name in ("o", "lse"):
            assert torch.equal(getattr(wrong, name), getattr(args, name)), f"{name} with {value}"
    marked = with_entry(args, "last_page_len", 0, -FAR - 1)
    run(descriptor, marked)
    rows = slice(0, int(args.q_indptr[1]) if "q_indptr" in descriptor.operands() else 1)
    assert bool((marked.o[rows] == 0).all())
    assert bool((marked.lse[rows] == -torch.inf).all())


def sound(kind, device):
    """A call in which every request has rows and keys, and the last one reads its operands to their end."""
    descriptor = ATTENTION[kind]
    batch, size = descriptor.batch_size, getattr(getattr(descriptor, "paged_kv", None), "page_size", 0)
    rows = None
    if "q_indptr" in descriptor.operands():
        rows = [3, 5] + [0] * (batch - 2) if batch == 2 else [0] * (batch - 2) + [3, 5]
    keys = [17, 23] if not size else [2 * size - 1, *[1] * (batch - 2), 2 * size]
    return inputs.make_args(descriptor, seed=7, device=device, lengths=inputs.DrawnLengths(q=rows, kv=keys))


def with_entry(args, operand, at, value):
    changed = getattr(args, operand).clone()
    changed[at] = value
    return replace(args, **{operand: changed})


def check_reads(kind, wrong, run, device="cpu"):
    """Nothing outside o and lse is written, and o and lse are those of the clamped entry, whatever memory surrounds the
    operands.
    """
    whole, args = surrounded(sound(kind, device))
    getattr(args, wrong.operand)[wrong.at] = wrong.value
    before = {name: bits(t).clone() for name, t in whole.items()}
    run(ATTENTION[kind], args)
    for name, tensor in whole.items():
        now, was = bits(tensor), before[name]
        if name in ("o", "lse"):
            now, was = torch.cat([now[:MARGIN], now[-MARGIN:]]), torch.cat([was[:MARGIN], was[-MARGIN:]])
        assert torch.equal(now, was), f"{name} was written outside"
    if wrong.means is None:
        return
    right = _clamped(kind, wrong.operand, wrong.at, wrong.means, run, device)
    for name in ("o", "lse"):
        if getattr(args, name) is not None:
            assert torch.equal(bits(getattr(args, name)), bits(getattr(right, name))), f"{name} is not that of {wrong.means}"


def check_rows_before_the_first_entry(run, device="cpu"):
    """A q_indptr that starts at its end leaves every row unchanged, though a search finds request 0 for the first tiles."""
    for kv_split in ("off", 32):
        descriptor = BatchPagedPrefillDescriptor(**_PREFILL | {"total_num_rows": 100}, kv_split=kv_split, paged_kv=pool())
        args = inputs.make_args(descriptor, seed=7, device=device, lengths=inputs.DrawnLengths(q=[40, 60], kv=[50, 70]))
        args.q_indptr.fill_(100)
        run(descriptor, args)
        assert bool(args.o.isnan().all() and args.lse.isnan().all())


@cache
def _clamped(kind, operand, at, means, run, device):
    args = with_entry(sound(kind, device), operand, at, means)
    run(ATTENTION[kind], args)
    return args


def bits(tensor):
    return tensor.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


# Appends: the table. Request 0 appends rows 0 and 1 at positions 16 and 17, request 1 appends row 2 at position 19.
_APPEND = {"batch_size": 2, "total_num_rows": 3}
_COMPUTED = {"new_dtype": "f16", "kv_scale": "tensor", "rope": "half"}
APPENDS = {
    f"{page_table}-{kind}": PagedKvAppendDescriptor(**_APPEND, page_table=page_table, **more)
    for page_table in ("csr", "block")
    for kind, more in {
        "copy": {"paged_kv": pool(8)},
        "odd": {"paged_kv": pool(8, head_dim=65)},
        "computed": {"paged_kv": pool(8, dtype="f8_e4m3"), **_COMPUTED},
    }.items()
}


def _rows(operand, at, values, kept):
    return [(operand, at, value, kept) for value in values]


_OF_ROWS = (
    *_rows("append_indptr", 2, (4, 30, FAR, 1, -4), (0, 1)),
    *_rows("append_indptr", 0, (-1, -FAR), (2,)),
    *_rows("append_indptr", 0, (1,), (1, 2)),
    *_rows("append_indptr", 1, (-1, FAR, -FAR, 30), ()),
)
# (operand, position, value, rows that are still appended)
DROPS = {
    "block": (
        *_rows("block_table", (0, 1), (-1, 8, FAR, -FAR), (2,)),
        *_rows("kv_lens", 0, (40, 33, FAR, -1, -FAR, 0, 1), (2,)),
        *_OF_ROWS,
    ),
    "csr": (
        *_rows("kv_indices", 1, (-1, 8, FAR, -FAR), (2,)),
        *_rows("last_page_len", 0, (17, FAR, 0, -1, -FAR), (2,)),
        *_rows("kv_indptr", 2, (5, FAR, 1, -1), (0, 1)),
        *_rows("kv_indptr", 0, (-1, -FAR), (2,)),
        *_rows("kv_indptr", 1, (9, -1, FAR, -FAR), ()),
        *_OF_ROWS,
    ),
}


def check_all_writes(kind, run, device="cpu"):
    for drop in DROPS[kind.partition("-")[0]]:
        try:
            check_writes(kind, drop, run, device)
        except AssertionError as error:
            raise AssertionError(f"{drop}: {error}") from error


def sound_append(kind, device):
    args = inputs.make_args(APPENDS[kind], seed=3, device=device, lengths=inputs.DrawnLengths(q=[2, 1], kv=[18, 20]))
    pages = torch.tensor([[4, 7], [5, 6]], dtype=torch.int32, device=device)
    if args.block_table is not None:
        return replace(args, block_table=pages)
    return replace(args, kv_indices=pages.flatten())


def check_writes(kind, drop, run, device="cpu"):
    """After a call with wrong indices, the rows `kept` are at the positions of the correct call; no other byte is written."""
    operand, at, value, kept = drop
    right = sound_append(kind, device)
    untouched = {name: getattr(right, name).clone() for name in ("k_data", "v_data")}
    run(APPENDS[kind], right)
    whole, args = surrounded(replace(right, **untouched))
    getattr(args, operand)[at] = value
    before = {name: bits(t).clone() for name, t in whole.items()}
    for name in untouched:
        for row in kept:
            place = (7, row) if row < 2 else (6, 3)  # page and slot
            _by_token(before[name][MARGIN:-MARGIN])[place] = _by_token(bits(getattr(right, name)))[place]
    run(APPENDS[kind], args)
    for name, tensor in whole.items():
        wrong = (bits(tensor) != before[name]).nonzero()
        assert wrong.numel() == 0, f"{name}{wrong[0].tolist()} of the whole is not as it should be"


def _by_token(pool):
    return pool.transpose(1, 2)  # HND
