"""SGLang's multi-rank calls on opfacade: the merge for decode context parallelism, and the all-reduce fused with a norm."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from opfacade.integrations.engines import SGLANG
from opfacade.integrations.over_ranks import EngineGroup, OverRanks, replace_everywhere

if TYPE_CHECKING:
    from torch import Tensor


def use_ranks(*, attention: OverRanks | None = None, norm: OverRanks | None = None) -> None:
    """Replaces `cp_lse_ag_out_rs_mha`, `cp_lse_ag_out_rs_mla` and `flashinfer_allreduce_residual_rmsnorm` in this process. Call
    it in every process of the engine, before graphs are captured. attention: the plans for the ranks of decode context
    parallelism; norm: the plans for the ranks of tensor-parallel attention. A call for which no plan fits runs SGLang's own
    function.

    Raises UnsupportedError without SGLang (OPF-I006), or if its release does not have these functions (OPF-I005).
    """
    with SGLANG.importing():
        from sglang.srt.layers import flashinfer_comm_fusion
        from sglang.srt.layers.dcp import comm
    SGLANG.tell_release()
    with SGLANG.registering():
        heads, latent = comm.cp_lse_ag_out_rs_mha, comm.cp_lse_ag_out_rs_mla
        fused = flashinfer_comm_fusion.flashinfer_allreduce_residual_rmsnorm
    if attention is not None:
        replace_everywhere(heads, merge_of_heads(attention, heads))
        replace_everywhere(latent, merge_of_latents(attention, latent))
    if norm is not None:
        flashinfer_comm_fusion.flashinfer_allreduce_residual_rmsnorm = fused_norm(norm, fused)


def merge_of_heads(ranks: OverRanks, own: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `cp_lse_ag_out_rs_mha`, whose lse is a natural logarithm."""

    @wraps(own)
    def cp_lse_ag_out_rs_mha(cp_attn_out: Tensor, cp_attn_lse: Tensor, cp_group: EngineGroup, return_lse: bool = False) -> Any:
        found = ranks.merged(cp_attn_out, cp_attn_lse) if ranks.serves(cp_group) else None
        if found is None:
            return own(cp_attn_out, cp_attn_lse, cp_group, return_lse=return_lse)
        return found if return_lse else found[0]

    return cp_lse_ag_out_rs_mha


def merge_of_latents(ranks: OverRanks, own: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `cp_lse_ag_out_rs_mla`, whose lse has base 2 by default."""

    @wraps(own)
    def cp_lse_ag_out_rs_mla(
        cp_attn_out: Tensor, cp_attn_lse: Tensor, cp_group: EngineGroup, ctx: object = None, is_lse_base_on_e: bool = False
    ) -> Any:
        found = ranks.merged(cp_attn_out, cp_attn_lse, not is_lse_base_on_e) if ranks.serves(cp_group) else None
        if found is None:
            return own(cp_attn_out, cp_attn_lse, cp_group, ctx=ctx, is_lse_base_on_e=is_lse_base_on_e)
        return found[0]

    return cp_lse_ag_out_rs_mla


def fused_norm(ranks: OverRanks, own: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `flashinfer_allreduce_residual_rmsnorm`. Sums are always f32, independently of fp32_acc."""

    @wraps(own)
    def flashinfer_allreduce_residual_rmsnorm(
        input_tensor: Tensor,
        residual: Tensor,
        weight: Tensor,
        eps: float = 1e-6,
        max_token_num: int = 2048,
        use_oneshot: bool | None = None,
        trigger_completion_at_end: bool = False,
        fp32_acc: bool = True,
        use_attn_tp_group: bool = True,
    ) -> Any:
        found = ranks.normed(input_tensor, residual, weight, eps) if use_attn_tp_group else None
        if found is not None:
            return found
        rest = (max_token_num, use_oneshot, trigger_completion_at_end, fp32_acc, use_attn_tp_group)
        return own(input_tensor, residual, weight, eps, *rest)

    return flashinfer_allreduce_residual_rmsnorm


__all__ = ["fused_norm", "merge_of_heads", "merge_of_latents", "use_ranks"]
