"""Other libraries that compute `o` of an attention call from its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opfacade.core.dtypes import ROUNDOFF, UNDERFLOW
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.testing.families.attention.call import is_paged_kv
from opfacade.testing.harness import HasLengths
from opfacade.testing.peer import Call, Make, Peer, declined

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Descriptor
    from opfacade.testing.families.attention.call import AttentionCall, KvProblem


def usual(dtype: str) -> PrecisionGuarantee:
    """The guarantee assumed for peers: f32 sums in any order, P rounded to the element type, and an exponential with twenty
    correct bits, as in vector units."""
    facts = {"u_acc": 2.0**-23, "k_step": 16.0, "u_p": ROUNDOFF[dtype], "eta_p": UNDERFLOW[dtype], "exp": 2.0**-19}
    facts |= {"tanh": 2.0**-19, "tile": 2.0**31, "lanes": 1.0, "split": 1.0}
    model = ErrorModel(id="attention-mma16", constants=tuple(sorted(facts.items())))
    return PrecisionGuarantee(math_precision=f"{dtype}_products", accumulator="f32", error_model=model)


# torch


def _scaled(d: Descriptor[Any]) -> bool:
    return any(getattr(d, name, "none") != "none" for name in ("kv_scale", "q_scale"))


def _sdpa(d: KvProblem, args: AttentionCall, lengths: HasLengths) -> Call:
    """torch SDPA on dense K and V, which are gathered before the call. Supports requests of equal length, with a bottom-right
    causal mask or without a mask."""
    import torch

    _plain_only(d)
    q_len = 1 if lengths.q is None else _same(lengths.q, "q")
    kv_len = _same(lengths.kv or (), "kv")
    if d.window_left >= 0 or d.logits_soft_cap > 0 or getattr(d, "sinks", False) or _scaled(d):
        raise declined("no window, soft cap, sinks or scaled fp8")
    causal = bool(getattr(d, "causal", False)) and q_len > 1
    if causal and q_len != kv_len:
        raise declined("its causal mask is aligned to the top left")
    batch = d.batch_size
    k, v = (_dense(d, args, pool, kv_len).view(batch, kv_len, d.kv_heads, -1).transpose(1, 2) for pool in _pools(d, args))
    q = args.q.view(batch, q_len, d.num_qo_heads, d.dim).transpose(1, 2)
    o = args.o.view(batch, q_len, d.num_qo_heads, d.dim_vo)
    attend = torch.nn.functional.scaled_dot_product_attention

    def run() -> None:
        o.copy_(attend(q, k, v, is_causal=causal, scale=d.scale, enable_gqa=d.group_size > 1).transpose(1, 2))

    return run


def _plain_only(d: Descriptor[Any]) -> None:
    if getattr(d, "variant", None) is not None or getattr(d, "custom_mask", False):
        raise declined("no variant or packed mask")


def _pools(d: Descriptor[Any], args: AttentionCall) -> tuple[Any, Any]:
    return (args.k_data, args.v_data) if is_paged_kv(d) else (args.k, args.v)


def _dense(d: KvProblem, args: AttentionCall, pool: Tensor, kv_len: int) -> Any:
    """The rows of K or V of all requests, concatenated."""
    if not is_paged_kv(d):
        return pool[: d.batch_size * kv_len].contiguous()
    import torch

    cache, pages = d.paged_kv, -(-kv_len // d.paged_kv.page_size)
    if args.block_table is not None:
        table = args.block_table[:, :pages].long()
    else:
        table = args.kv_indices[: d.batch_size * pages].long().view(d.batch_size, pages)
    by_token = pool.transpose(1, 2) if cache.layout == "HND" else pool
    at = torch.arange(kv_len, device=pool.device)
    page = table[:, at // cache.page_size]
    return by_token[page, at % cache.page_size].contiguous()


def _same(lengths: Sequence[int], name: str) -> int:
    if len(set(lengths)) != 1 or not lengths[0]:
        raise declined(f"{name} lengths differ or are zero")
    return lengths[0]


# FlashInfer


def _flashinfer(backend: str) -> Make:
    def make(d: KvProblem, args: AttentionCall, lengths: HasLengths) -> Call:
        import flashinfer
        import torch

        _plain_only(d)
        if not is_paged_kv(d) or d.page_table != "csr" or not args.q.is_cuda:
            raise declined("only paged attention with csr page tables on a GPU")
        if getattr(d, "sinks", False) or _scaled(d):
            raise declined("no sinks or scaled fp8")
        scratch = torch.empty(384 << 20, dtype=torch.uint8, device=args.q.device)
        table = (args.kv_indptr, args.kv_indices[: int(args.kv_indptr[-1])].contiguous(), args.last_page_len)
        heads = (d.num_qo_heads, d.kv_heads, d.dim, d.paged_kv.page_size)
        same = {"q_data_type": args.q.dtype, "kv_data_type": args.k_data.dtype, "sm_scale": d.scale}
        same |= {"window_left": d.window_left, "logits_soft_cap": d.logits_soft_cap}
        if d.op == "paged_decode":
            kind = flashinfer.BatchDecodeWithPagedKVCacheWrapper
            wrapper = kind(scratch, d.paged_kv.layout, use_tensor_cores=True, backend=backend)
            wrapper.plan(*table, *heads, **same)
        else:
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(scratch, d.paged_kv.layout, backend=backend)
            wrapper.plan(args.q_indptr, *table, *heads, causal=d.causal, **same)

        def run() -> None:
            wrapper.run(args.q, (args.k_data, args.v_data), out=args.o)

        return run

    return make


PEERS = (
    Peer("flashinfer-fa2", "flashinfer", _flashinfer("fa2")),
    Peer("flashinfer-fa3", "flashinfer", _flashinfer("fa3")),
    Peer("torch-sdpa (dense)", "torch", _sdpa),
)
