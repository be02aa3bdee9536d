"""Small random calls in which all unused memory is poisoned: outputs, free pages, slots past a length, entries
past a request.
"""

import math
import random
from dataclasses import replace

import torch

from opfacade import Plan, Preference, Target
from opfacade.plans.attention import (
    BatchPagedDecodeArgs,
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillArgs,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillArgs,
    BatchRaggedPrefillDescriptor,
    PagedKvCacheDescriptor,
)
from opfacade.plans.kv_cache import PagedKvAppendArgs, PagedKvAppendDescriptor
from opfacade.plans.mla import BatchMlaDecodeArgs, BatchMlaDecodeDescriptor, PagedLatentCacheDescriptor

DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f8_e4m3": torch.float8_e4m3fn,
    "f8_e5m2": torch.float8_e5m2,
}
REFERENCE = Preference(backend="reference")


def i32(values):
    return torch.tensor(list(values), dtype=torch.int32)


def indptr(lengths):
    total = [0]
    for n in lengths:
        total.append(total[-1] + n)
    return i32(total)


def noise(*shape, dtype="f16"):
    return torch.randn(*shape).to(DTYPES[dtype])


def poison(*shape, dtype="f16"):
    return torch.full(shape, math.nan).to(DTYPES[dtype])


def cache(**fields):
    base = {"num_total_pages": 24, "page_size": 4, "num_kv_heads": 2, "head_dim": 8, "dtype": "f16", "layout": "NHD"}
    return PagedKvCacheDescriptor(**(base | fields))


def page_lists(paged_kv, kv_lens, rng, shared=False):
    """Random pages for each request. No two requests share a page, unless `shared`: then their first full pages are equal."""
    free = rng.sample(range(paged_kv.num_total_pages), paged_kv.num_total_pages)
    lists = [[free.pop() for _ in range(-(-n // paged_kv.page_size))] for n in kv_lens]
    if shared:
        longest = max(lists, key=len)
        lists = [
            longest[: n // paged_kv.page_size] + own[n // paged_kv.page_size :] for n, own in zip(kv_lens, lists, strict=True)
        ]
    return lists


def table(form, paged_kv, kv_lens, lists, width=0):
    """The page table of some requests, with garbage in entries that must not be read."""
    if form == "block":
        width = width or max(map(len, lists), default=0) + 2
        rows = [own + [-1 - 7 * r] * (width - len(own)) for r, own in enumerate(lists)]
        return {"block_table": i32([p for row in rows for p in row]).view(len(rows), width), "kv_lens": i32(kv_lens)}
    last = [(n - 1) % paged_kv.page_size + 1 if n else 12345 for n in kv_lens]
    tail = [-1, 2**31 - 1]
    indices = i32([p for own in lists for p in own] + tail)
    return {"kv_indptr": indptr(map(len, lists)), "kv_indices": indices, "last_page_len": i32(last)}


def pools(paged_kv, kv_lens, lists, strided=False):
    """K and V pools with noise in every valid slot and NaN elsewhere; strided: both interleaved in one padded buffer."""
    pages, tokens, heads, dim = paged_kv.num_total_pages, paged_kv.page_size, paged_kv.num_kv_heads, paged_kv.head_dim
    if strided:
        buffer = poison(pages, tokens + 1, heads, 2, -(-dim // 16) * 16, dtype=paged_kv.dtype)
        pair = [buffer[:, :tokens, :, i, :dim] for i in (0, 1)]
        pair = [p.transpose(1, 2) if paged_kv.layout == "HND" else p for p in pair]
    else:
        inner = (heads, tokens) if paged_kv.layout == "HND" else (tokens, heads)
        pair = [poison(pages, *inner, dim, dtype=paged_kv.dtype) for _ in (0, 1)]
    for pool in pair:
        by_token = pool.transpose(1, 2) if paged_kv.layout == "HND" else pool
        for n, own in zip(kv_lens, lists, strict=True):
            for t in range(n):
                by_token[own[t // tokens], t % tokens] = noise(heads, dim, dtype=paged_kv.dtype)
    return {"k_data": pair[0], "v_data": pair[1]}


def sinks(descriptor):
    """A sink logit for each query head, about as large as a score; -inf (no sink) for the first head."""
    return (
        {"sinks": torch.randn(descriptor.num_qo_heads).index_fill(0, torch.tensor([0]), -math.inf)} if descriptor.sinks else {}
    )


def varied(descriptor, q_lens, kv_lens):
    """Parameters of a variant, and a packed mask with an unused byte after each request."""
    found = {}
    for name, spec in descriptor.operands().items():
        shape = [dim.size for dim in spec.shape]
        if name == "head_params":
            found[name] = torch.randn(*shape)
        elif name in ("row_params", "key_params"):
            found[name] = torch.randint(0, 3, shape).int()
    if descriptor.custom_mask:
        sizes = [-(-q * kv // 8) + 1 for q, kv in zip(q_lens, kv_lens, strict=True)]
        found |= {"packed_mask": torch.randint(0, 256, (sum(sizes),)).to(torch.uint8), "mask_indptr": indptr(sizes)}
    return found


def scales(descriptor):
    """Random scales of an fp8 cache and an fp8 q."""
    names = ("k_scale", "v_scale", "q_scale")
    counts = {name: spec.shape[0].size for name, spec in descriptor.operands().items() if name in names}
    return {name: torch.rand(counts[name]) * 2 + 0.1 for name in names if name in counts}


def prefill(
    q_lens, kv_lens, *, heads=4, causal=True, page_table="csr", paged_kv=None, seed=0, shared=False, strided=False, **fields
):
    """(descriptor, args) of a paged prefill."""
    torch.manual_seed(seed)
    paged_kv = paged_kv or cache()
    rows = sum(q_lens)
    descriptor = BatchPagedPrefillDescriptor(
        batch_size=len(q_lens), total_num_rows=rows, num_qo_heads=heads, causal=causal, page_table=page_table,
        paged_kv=paged_kv, **fields,
    )  # fmt: skip
    lists = page_lists(paged_kv, kv_lens, random.Random(seed), shared)
    dtype = descriptor.query_dtype
    args = BatchPagedPrefillArgs(
        q=noise(rows, heads, paged_kv.head_dim, dtype=dtype), q_indptr=indptr(q_lens),
        **pools(paged_kv, kv_lens, lists, strided), **table(page_table, paged_kv, kv_lens, lists), **scales(descriptor),
        **sinks(descriptor), **varied(descriptor, q_lens, kv_lens),
        o=poison(rows, heads, paged_kv.head_dim, dtype=descriptor.output_dtype),
        lse=poison(rows, heads, dtype="f32") if descriptor.return_lse else None,
    )  # fmt: skip
    return descriptor, args


def decode(kv_lens, *, heads=4, page_table="csr", paged_kv=None, seed=0, shared=False, strided=False, **fields):
    """(descriptor, args) of a paged decode."""
    shape = {"heads": heads, "page_table": page_table, "paged_kv": paged_kv}
    _, made = prefill([1] * len(kv_lens), kv_lens, seed=seed, shared=shared, strided=strided, **shape, **fields)
    descriptor = BatchPagedDecodeDescriptor(
        batch_size=len(kv_lens), num_qo_heads=heads, page_table=page_table, paged_kv=paged_kv or cache(), **fields
    )
    names = BatchPagedDecodeArgs.__slots__
    return descriptor, BatchPagedDecodeArgs(**{name: getattr(made, name) for name in names})


def mla(kv_lens, *, heads=5, page_table="csr", pool=None, seed=0, columns=False, **fields):
    """(descriptor, args) of a latent decode; columns: ckv and kpe are columns of one tensor with a gap after them."""
    torch.manual_seed(seed)
    pool = pool or PagedLatentCacheDescriptor(num_total_pages=24, page_size=4, latent_dim=16, rope_dim=8, dtype="f16")
    fields = {"sm_scale": 0.2} | fields
    descriptor = BatchMlaDecodeDescriptor(
        batch_size=len(kv_lens), num_qo_heads=heads, paged_kv=pool, page_table=page_table, **fields
    )
    lists = page_lists(pool, kv_lens, random.Random(seed))
    latent, rope, dtype, rows = pool.latent_dim, pool.rope_dim, descriptor.query_dtype, len(kv_lens) * descriptor.q_len
    shape, whole = (pool.num_total_pages, pool.page_size), poison(pool.num_total_pages, pool.page_size, latent + rope + 8)
    ckv, kpe = (
        (whole[..., :latent], whole[..., latent : latent + rope]) if columns else (poison(*shape, latent), poison(*shape, rope))
    )
    ckv, kpe = ckv.to(DTYPES[pool.dtype]), kpe.to(DTYPES[pool.dtype])
    for n, own in zip(kv_lens, lists, strict=True):
        for t in range(n):
            for part in (ckv, kpe):
                part[own[t // pool.page_size], t % pool.page_size] = noise(part.shape[-1], dtype=pool.dtype)
    args = BatchMlaDecodeArgs(
        q_nope=noise(rows, heads, latent, dtype=dtype), q_pe=noise(rows, heads, rope, dtype=dtype), ckv=ckv, kpe=kpe,
        **table(page_table, pool, kv_lens, lists), **sinks(descriptor),
        o=poison(rows, heads, latent, dtype=dtype), lse=poison(rows, heads, dtype="f32") if descriptor.return_lse else None,
    )  # fmt: skip
    return descriptor, args


def ragged(q_lens, kv_lens, *, heads=4, kv_heads=2, dim=8, dim_vo=None, dtype="f16", causal=True, seed=0, **fields):
    """(descriptor, args) of a ragged prefill; K and V have one more row than is used, which is NaN."""
    torch.manual_seed(seed)
    rows, kv_rows = sum(q_lens), sum(kv_lens) + 1
    descriptor = BatchRaggedPrefillDescriptor(
        batch_size=len(q_lens), total_num_rows=rows, total_kv_rows=kv_rows, num_qo_heads=heads, num_kv_heads=kv_heads,
        head_dim=dim, head_dim_vo=dim_vo, causal=causal, dtype=dtype, **fields,
    )  # fmt: skip
    wide = descriptor.dim_vo
    k, v = noise(kv_rows, kv_heads, dim, dtype=dtype), noise(kv_rows, kv_heads, wide, dtype=dtype)
    k[-1:], v[-1:] = poison(1, kv_heads, dim, dtype=dtype), poison(1, kv_heads, wide, dtype=dtype)
    q_dtype = descriptor.query_dtype
    args = BatchRaggedPrefillArgs(
        q=noise(rows, heads, dim, dtype=q_dtype), q_indptr=indptr(q_lens), k=k, v=v, kv_indptr=indptr(kv_lens),
        **sinks(descriptor), **varied(descriptor, q_lens, kv_lens),
        **scales(descriptor), o=poison(rows, heads, wide, dtype=descriptor.output_dtype),
        lse=poison(rows, heads, dtype="f32") if descriptor.return_lse else None,
    )  # fmt: skip
    return descriptor, args


def append(new_lens, kv_lens, *, page_table="csr", paged_kv=None, seed=0, strided=False, **fields):
    """(descriptor, args) of an append of the last new_lens tokens of kv_lens."""
    torch.manual_seed(seed)
    paged_kv = paged_kv or cache()
    rows = sum(new_lens)
    descriptor = PagedKvAppendDescriptor(
        batch_size=len(new_lens), total_num_rows=rows, paged_kv=paged_kv, page_table=page_table, **fields
    )
    lists = page_lists(paged_kv, kv_lens, random.Random(seed))
    new = (rows, paged_kv.num_kv_heads, paged_kv.head_dim)
    more = scales(descriptor)
    if descriptor.rotated:
        angle = torch.rand(max(kv_lens, default=0), descriptor.rotated // 2) * 6.3
        more["cos_sin_cache"] = torch.cat([angle.cos(), angle.sin()], -1).to(DTYPES[descriptor.rope_dtype])
    dtype = descriptor.row_dtype
    args = PagedKvAppendArgs(
        k_new=noise(*new, dtype=dtype), v_new=noise(*new, dtype=dtype), append_indptr=indptr(new_lens),
        **pools(paged_kv, kv_lens, lists, strided), **table(page_table, paged_kv, kv_lens, lists), **more,
    )  # fmt: skip
    return descriptor, args


def on_reference(descriptor):
    return Plan.select(descriptor, REFERENCE, Target.cpu())


def run(problem):
    """Runs (descriptor, args) on the reference backend, and returns both."""
    descriptor, args = problem
    on_reference(descriptor).run(args)
    return descriptor, args


def cloned(args):
    """The same call on separate memory, with the same strides."""
    return replace(args, **{n: copy(getattr(args, n)) for n in type(args).__slots__ if getattr(args, n) is not None})


def copy(tensor):
    other = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return other.copy_(tensor)


def bits(tensor):
    """The memory as integers, so that NaN equals itself."""
    return tensor.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
