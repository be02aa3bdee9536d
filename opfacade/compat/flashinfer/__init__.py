"""FlashInfer's operators on opfacade's plans: `import opfacade.compat.flashinfer as flashinfer`.

Arguments have the names and order of FlashInfer 0.6 and 0.7. As in FlashInfer, `lse` has base 2 and a mask replaces the causal
mask. plan() of a wrapper computes nothing on the host. Arguments that select among FlashInfer's own kernels (backend,
use_tensor_cores, enable_pdl, non_blocking, use_fp16_qk_reduction) are accepted and have no effect; any other argument without
an equivalent is refused by name before anything is written. docs/migrating.md lists missing functions."""

from typing import Any

from opfacade.compat.flashinfer import activation as activation
from opfacade.compat.flashinfer import attention as attention
from opfacade.compat.flashinfer import cascade as cascade
from opfacade.compat.flashinfer import decode as decode
from opfacade.compat.flashinfer import fused_moe as fused_moe
from opfacade.compat.flashinfer import gemm as gemm
from opfacade.compat.flashinfer import mla as mla
from opfacade.compat.flashinfer import norm as norm
from opfacade.compat.flashinfer import page as page
from opfacade.compat.flashinfer import prefill as prefill
from opfacade.compat.flashinfer import quantization as quantization
from opfacade.compat.flashinfer import rope as rope
from opfacade.compat.flashinfer import sampling as sampling
from opfacade.compat.flashinfer import topk as topk
from opfacade.compat.flashinfer._sampling.topk_transforms import top_k_page_table_transform as top_k_page_table_transform
from opfacade.compat.flashinfer._sampling.topk_transforms import top_k_ragged_transform as top_k_ragged_transform
from opfacade.compat.flashinfer.activation import gelu_and_mul as gelu_and_mul
from opfacade.compat.flashinfer.activation import gelu_tanh_and_mul as gelu_tanh_and_mul
from opfacade.compat.flashinfer.activation import silu_and_mul as silu_and_mul
from opfacade.compat.flashinfer.attention import BatchAttention as BatchAttention
from opfacade.compat.flashinfer.cascade import (
    BatchDecodeWithSharedPrefixPagedKVCacheWrapper as BatchDecodeWithSharedPrefixPagedKVCacheWrapper,
)
from opfacade.compat.flashinfer.cascade import (
    BatchPrefillWithSharedPrefixPagedKVCacheWrapper as BatchPrefillWithSharedPrefixPagedKVCacheWrapper,
)
from opfacade.compat.flashinfer.cascade import MultiLevelCascadeAttentionWrapper as MultiLevelCascadeAttentionWrapper
from opfacade.compat.flashinfer.cascade import merge_state as merge_state
from opfacade.compat.flashinfer.cascade import merge_state_in_place as merge_state_in_place
from opfacade.compat.flashinfer.cascade import merge_states as merge_states
from opfacade.compat.flashinfer.decode import BatchDecodeMlaWithPagedKVCacheWrapper as BatchDecodeMlaWithPagedKVCacheWrapper
from opfacade.compat.flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper as BatchDecodeWithPagedKVCacheWrapper
from opfacade.compat.flashinfer.decode import (
    CUDAGraphBatchDecodeWithPagedKVCacheWrapper as CUDAGraphBatchDecodeWithPagedKVCacheWrapper,
)
from opfacade.compat.flashinfer.decode import fast_decode_plan as fast_decode_plan
from opfacade.compat.flashinfer.decode import single_decode_with_kv_cache as single_decode_with_kv_cache
from opfacade.compat.flashinfer.fused_moe import ActivationType as ActivationType
from opfacade.compat.flashinfer.fused_moe import cutlass_fused_moe as cutlass_fused_moe
from opfacade.compat.flashinfer.gemm import SegmentGEMMWrapper as SegmentGEMMWrapper
from opfacade.compat.flashinfer.gemm import bmm_bf16 as bmm_bf16
from opfacade.compat.flashinfer.gemm import bmm_fp8 as bmm_fp8
from opfacade.compat.flashinfer.gemm import mm_bf16 as mm_bf16
from opfacade.compat.flashinfer.mla import BatchMLAPagedAttentionWrapper as BatchMLAPagedAttentionWrapper
from opfacade.compat.flashinfer.norm import fused_add_rmsnorm as fused_add_rmsnorm
from opfacade.compat.flashinfer.norm import fused_add_rmsnorm_quant as fused_add_rmsnorm_quant
from opfacade.compat.flashinfer.norm import fused_rmsnorm_silu as fused_rmsnorm_silu
from opfacade.compat.flashinfer.norm import gemma_fused_add_rmsnorm as gemma_fused_add_rmsnorm
from opfacade.compat.flashinfer.norm import gemma_rmsnorm as gemma_rmsnorm
from opfacade.compat.flashinfer.norm import layernorm as layernorm
from opfacade.compat.flashinfer.norm import layernorm_quant as layernorm_quant
from opfacade.compat.flashinfer.norm import rmsnorm as rmsnorm
from opfacade.compat.flashinfer.norm import rmsnorm_quant as rmsnorm_quant
from opfacade.compat.flashinfer.page import append_paged_kv_cache as append_paged_kv_cache
from opfacade.compat.flashinfer.page import append_paged_mla_kv_cache as append_paged_mla_kv_cache
from opfacade.compat.flashinfer.page import get_batch_indices_positions as get_batch_indices_positions
from opfacade.compat.flashinfer.page import get_seq_lens as get_seq_lens
from opfacade.compat.flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper as BatchPrefillWithPagedKVCacheWrapper
from opfacade.compat.flashinfer.prefill import BatchPrefillWithRaggedKVCacheWrapper as BatchPrefillWithRaggedKVCacheWrapper
from opfacade.compat.flashinfer.prefill import single_prefill_with_kv_cache as single_prefill_with_kv_cache
from opfacade.compat.flashinfer.prefill import (
    single_prefill_with_kv_cache_return_lse as single_prefill_with_kv_cache_return_lse,
)
from opfacade.compat.flashinfer.quantization import packbits as packbits
from opfacade.compat.flashinfer.quantization import segment_packbits as segment_packbits
from opfacade.compat.flashinfer.rope import apply_llama31_rope as apply_llama31_rope
from opfacade.compat.flashinfer.rope import apply_llama31_rope_inplace as apply_llama31_rope_inplace
from opfacade.compat.flashinfer.rope import apply_llama31_rope_pos_ids as apply_llama31_rope_pos_ids
from opfacade.compat.flashinfer.rope import apply_llama31_rope_pos_ids_inplace as apply_llama31_rope_pos_ids_inplace
from opfacade.compat.flashinfer.rope import apply_rope as apply_rope
from opfacade.compat.flashinfer.rope import apply_rope_inplace as apply_rope_inplace
from opfacade.compat.flashinfer.rope import apply_rope_pos_ids as apply_rope_pos_ids
from opfacade.compat.flashinfer.rope import apply_rope_pos_ids_inplace as apply_rope_pos_ids_inplace
from opfacade.compat.flashinfer.rope import apply_rope_with_cos_sin_cache as apply_rope_with_cos_sin_cache
from opfacade.compat.flashinfer.rope import apply_rope_with_cos_sin_cache_inplace as apply_rope_with_cos_sin_cache_inplace
from opfacade.compat.flashinfer.sampling import chain_speculative_sampling as chain_speculative_sampling
from opfacade.compat.flashinfer.sampling import min_p_sampling_from_probs as min_p_sampling_from_probs
from opfacade.compat.flashinfer.sampling import sampling_from_logits as sampling_from_logits
from opfacade.compat.flashinfer.sampling import sampling_from_probs as sampling_from_probs
from opfacade.compat.flashinfer.sampling import softmax as softmax
from opfacade.compat.flashinfer.sampling import top_k_mask_logits as top_k_mask_logits
from opfacade.compat.flashinfer.sampling import top_k_renorm_probs as top_k_renorm_probs
from opfacade.compat.flashinfer.sampling import top_k_sampling_from_probs as top_k_sampling_from_probs
from opfacade.compat.flashinfer.sampling import top_k_top_p_sampling_from_logits as top_k_top_p_sampling_from_logits
from opfacade.compat.flashinfer.sampling import top_k_top_p_sampling_from_probs as top_k_top_p_sampling_from_probs
from opfacade.compat.flashinfer.sampling import top_p_renorm_probs as top_p_renorm_probs
from opfacade.compat.flashinfer.sampling import top_p_sampling_from_probs as top_p_sampling_from_probs
from opfacade.compat.flashinfer.topk import TopKTieBreak as TopKTieBreak
from opfacade.compat.flashinfer.topk import top_k as top_k
from opfacade.compat.refusals import missing as _missing


def __getattr__(name: str) -> Any:
    raise _missing(__name__, name, globals())
