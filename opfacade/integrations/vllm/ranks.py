"""vLLM's multi-rank calls on opfacade: the merge for decode context parallelism, and the all-reduce fused with a norm."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from opfacade.integrations.engines import VLLM
from opfacade.integrations.over_ranks import EngineGroup, OverRanks, replace_everywhere

if TYPE_CHECKING:
    from torch import Tensor

FUSED = "flashinfer_trtllm_fused_allreduce_norm"  # the torch op that vLLM's fusion pass inserts into graphs
_libraries: list[Any] = []  # an implementation is registered as long as its library object exists


def use_ranks(*, attention: OverRanks | None = None, norm: OverRanks | None = None, device: str = "CUDA") -> None:
    """Replaces `cp_lse_ag_out_rs`, and the implementation of the op for fused all-reduce and norm, in this process. Call it in
    the worker processes, before the model is loaded. attention: the plans for the ranks of decode context parallelism; norm:
    the plans for the ranks of tensor parallelism, used if `fuse_allreduce_rms` is on. A call for which no plan fits runs vLLM's
    own function. device: the dispatch key of the op.

    Raises UnsupportedError without vLLM (OPF-I006), or if its release does not have these functions (OPF-I005).
    """
    with VLLM.importing():
        from vllm.compilation.passes.fusion import allreduce_rms_fusion
        from vllm.v1.attention.ops import dcp
    VLLM.tell_release()
    with VLLM.registering():
        merge, empty = dcp.cp_lse_ag_out_rs, dcp.mask_dcp_empty_shards_
        fused = allreduce_rms_fusion.call_trtllm_fused_allreduce_norm if norm is not None else None
    if attention is not None:
        replace_everywhere(merge, merge_of_heads(attention, merge, empty))
    if norm is not None and fused is not None:
        _override(fused_norm(norm, fused), device)


def _override(call: Callable[..., None], device: str) -> None:
    import torch

    make: Any = torch.library.Library
    library = make("vllm", "IMPL")
    library.impl(FUSED, call, device, allow_override=True)
    _libraries.append(library)


def merge_of_heads(ranks: OverRanks, own: Callable[..., Any], empty: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `cp_lse_ag_out_rs`. empty: vLLM's function that sets the lse to -inf for requests without keys on this rank."""

    @wraps(own)
    def cp_lse_ag_out_rs(
        cp_attn_out: Tensor,
        cp_attn_lse: Tensor,
        cp_group: EngineGroup,
        ctx: object = None,
        return_lse: bool = False,
        is_lse_base_on_e: bool = True,
        seq_lens: Tensor | None = None,
        query_start_loc: Tensor | None = None,
    ) -> Any:
        if ranks.serves(cp_group) and ranks.fits(cp_attn_out):
            lse = cp_attn_lse.contiguous()
            empty(lse, seq_lens, query_start_loc)
            found = ranks.merged(cp_attn_out, lse, not is_lse_base_on_e)
            if found is not None:
                return found if return_lse else found[0]
        return own(cp_attn_out, cp_attn_lse, cp_group, ctx, return_lse, is_lse_base_on_e, seq_lens, query_start_loc)

    return cp_lse_ag_out_rs


def fused_norm(ranks: OverRanks, own: Callable[..., None]) -> Callable[..., None]:
    """Replaces `call_trtllm_fused_allreduce_norm` for its pattern without quantisation: results overwrite the arguments."""

    @wraps(own)
    def call_trtllm_fused_allreduce_norm(
        allreduce_in: Tensor,
        residual: Tensor,
        rms_gamma: Tensor,
        rms_eps: float,
        world_size: int,
        launch_with_pdl: bool,
        fp32_acc: bool,
        max_token_num: int,
        pattern_code: int,
        norm_out: Tensor | None = None,
        quant_out: Tensor | None = None,
        scale_out: Tensor | None = None,
        scale_factor: Tensor | None = None,
        weight_bias: float = 0.0,
    ) -> None:
        rows, kept = (one.view(-1, one.shape[-1]) for one in (allreduce_in, residual))
        plain = quant_out is None and scale_out is None and weight_bias == 0 and world_size == ranks.group.world
        found = ranks.normed(rows, kept, rms_gamma, rms_eps) if plain else None
        if found is None:
            rest = (launch_with_pdl, fp32_acc, max_token_num, pattern_code, norm_out, quant_out, scale_out, scale_factor)
            return own(allreduce_in, residual, rms_gamma, rms_eps, world_size, *rest, weight_bias)
        # Without norm_out, the norm overwrites the input and the sum the residual; with norm_out, the sum overwrites the input.
        to_norm, to_sum = (rows, kept) if norm_out is None else (norm_out.view(rows.shape), rows)
        to_sum.copy_(found[1])
        to_norm.copy_(found[0])
        return None

    return call_trtllm_fused_allreduce_norm


__all__ = ["FUSED", "fused_norm", "merge_of_heads", "use_ranks"]
