"""Maps field and operand names of vLLM, SGLang, FlashInfer, flash-attn and transformers to ours, for hints in messages.

A value is our name. "|" separates names in several ops: the first that the op has applies. A note in parentheses says where to
write it or how the values differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


def _names(table: Mapping[str, str]) -> Mapping[str, str]:
    """Maps each word of the keys to the value."""
    return MappingProxyType({word: meant for words, meant in table.items() for word in words.split()})


_SIZES = {
    "num_tokens total_tokens total_q nnz m num_rows num_actual_tokens": "total_num_rows",
    "batch bs num_seqs num_reqs num_requests num_sequences max_batch_size max_num_seqs": "batch_size|total_num_rows",
    "batch_size": "total_num_rows",
    "hidden_size hidden_dim d_model embed_dim normalized_shape": "hidden|width",
    "intermediate_size moe_intermediate_size ffn_dim inter_size intermediate_dim": "width",
    "vocab_size n_vocab": "vocab",
    "out_features output_size": "n", "in_features input_size": "k",
    "num_experts n_routed_experts num_total_experts global_num_experts num_local_experts": "experts",
    "local_num_experts": "num_local", "local_expert_offset ep_offset": "first_expert",
    "topk num_experts_per_tok experts_per_token moe_top_k": "top_k|k", "top_k": "k",
    "num_heads num_attention_heads num_q_heads num_heads_q nheads n_heads qo_heads tp_q_head_num": "num_qo_heads|num_heads",
    "num_key_value_heads num_heads_k num_heads_kv nheads_k num_kv_head tp_k_head_num":
        "num_kv_heads|paged_kv (its num_kv_heads)",
    "num_kv_heads": "paged_kv (its num_kv_heads)",
    "head_size headdim qk_head_dim head_dim_qk": "head_dim|paged_kv (its head_dim)",
    "head_dim": "paged_kv (its head_dim)",
    "head_dim_v v_head_dim v_head_size": "head_dim_vo",
    "block_size": "page_size|paged_kv (its page_size)", "page_size": "paged_kv (its page_size)",
    "num_pages num_blocks max_num_pages num_gpu_blocks": "num_total_pages|paged_kv (its num_total_pages)",
    "max_seqlen_k max_seq_len max_kv_length max_model_len": "max_kv_len",
    "num_speculative_tokens num_speculate_tokens num_draft_tokens num_spec_tokens max_spec_len": "num_drafts",
    "tp_size world_size dcp_size dcp_world_size": "world", "cp_kv_cache_interleave_size": "interleave",
}  # fmt: skip

_MEANINGS = {
    "softmax_scale scaling sm_scale_value": "sm_scale", "scale": "sm_scale",
    "sliding_window window": "window_left (sliding_window - 1)", "window_size": "window_left (the left of the two)",
    "softcap soft_cap logits_soft_cap logit_cap attn_logit_softcapping final_logit_softcapping": "logits_soft_cap|soft_cap",
    "is_causal": "causal", "s_aux attention_sinks use_sinks has_sinks sink": "sinks",
    "alibi_slopes use_alibi pos_encoding_mode": "variant", "packed_custom_mask mask_mode": "custom_mask",
    "num_splits fixed_split_size disable_split_kv num_kv_splits": "kv_split",
    "return_softmax_lse return_attn_probs": "return_lse", "kv_layout": "layout|paged_kv (its layout)",
    "kv_cache": "paged_kv", "k_descale v_descale": "kv_scale", "q_descale": "q_scale",
    "use_block_table": "page_table",
    "q_data_type dtype_q query_dtype": "q_dtype|dtype", "o_data_type output_dtype dtype_out": "o_dtype|out_dtype|dtype",
    "data_type torch_dtype input_dtype in_dtype params_dtype logits_dtype": "dtype|q_dtype",
    "kv_data_type kv_cache_dtype kv_dtype": "dtype|paged_kv (its dtype)", "dtype": "q_dtype|paged_kv (its dtype)",
    "epsilon rms_norm_eps layer_norm_eps norm_eps variance_epsilon layernorm_epsilon": "eps",
    "norm_type": "kind", "fused_add add_residual fuse_residual": "residual",
    "act act_fn hidden_act activation_type activation_function activation_fn": "activation",
    "has_bias use_bias with_bias add_bias bias_enabled": "bias",
    "trans_b transpose_b b_transposed b_layout": "weight_layout", "is_act_and_mul is_gated do_gate": "gated",
    "quant_dtype quant_type fp8_dtype": "dtype|quant (its dtype)", "group_size": "group|quant (its group)",
    "block_shape weight_block_size": "block|scaling (its kind)",
    "per_token per_act_token_quant use_per_token": "scale|scaling (its kind)",
    "column_major_scales": "scale_layout|quant (its scale_layout)",
    "scale_ue8m0 use_ue8m0": "scale_dtype|quant (its scale_dtype)",
    "swiglu_alpha gemm1_alpha": "alpha", "swiglu_beta gemm1_beta": "beta",
    "swiglu_limit gemm1_clamp_limit clamp_limit": "limit",
    "scoring_func routing_method_type score_function": "score|router (its score)",
    "renormalize norm_topk_prob": "renormalise|router (its renormalise)",
    "routed_scaling_factor": "scale|router (its scale)",
    "e_score_correction_bias routing_bias correction_bias": "correction|router (its correction)",
    "n_group num_expert_group num_expert_groups": "groups|router (its groups)",
    "topk_group topk_groups": "top_groups|router (its top_groups)",
    "apply_router_weight_on_input": "weights_at", "n_shared_experts num_fused_shared_experts": "shared_width",
    "rotary_embedding_dim rot_dim": "rotary_dim", "mrope_section": "sections", "mrope_interleaved": "section_order",
    "is_neox is_neox_style neox_style": "interleaved (is_neox=True is interleaved=False)|rope (is_neox=True is \"half\")",
    "rotary_interleaved interleave": "interleaved|rope",
    "cos_sin_dtype cache_dtype": "table_dtype|rope_dtype",
    "temperatures": "temperature", "logit_bias": "bias", "token_bitmask grammar_bitmask vocab_mask": "bitmask",
    "repetition_penalty frequency_penalty presence_penalty": "penalties",
    "filter_apply_order sampling_order": "order", "num_logprobs logprobs max_num_logprobs": "top_n|report",
}  # fmt: skip

# A field of one op may be another library's name for a field of another op, so an op's own names take precedence.
FIELDS = _names(_SIZES | _MEANINGS)

OPERANDS = _names({
    "query": "q", "key": "k|k_new", "value": "v|v_new", "xq": "q", "k": "k_new", "v": "v_new",
    "append_key": "k_new", "append_value": "v_new",
    "seq_lens cache_seqlens context_lens seqlens_k seqused_k seq_lens_k kv_len_arr": "kv_lens",
    "cu_seqlens_q qo_indptr query_start_loc q_cu_seqlens cu_q_lens extend_start_loc": "q_indptr|append_indptr",
    "cu_seqlens_k cu_seqlens_kv": "kv_indptr", "paged_kv_indptr": "kv_indptr", "paged_kv_indices": "kv_indices",
    "paged_kv_last_page_len kv_last_page_len": "last_page_len",
    "page_table block_tables block_table_tensor req_to_token": "block_table",
    "k_cache key_cache k_buffer paged_k_cache": "k_data", "v_cache value_cache v_buffer paged_v_cache": "v_data",
    "slot_mapping out_cache_loc": "slots|block_table", "ckv_cache": "ckv", "kpe_cache": "kpe", "q_rope": "q_pe",
    "softmax_lse": "lse", "k_descale": "k_scale", "v_descale": "v_scale", "q_descale": "q_scale",
    "s_aux attention_sinks sink": "sinks", "custom_mask packed_custom_mask": "packed_mask", "alibi_slopes": "head_params",
    "out output out_tensor": "o|out", "input hidden_states inp a": "x", "b mat2 w": "weight",
    "a_scale scale_a input_scale x_scales": "x_scale", "b_scale scale_b w_scale weight_scales": "weight_scale",
    "output_scale out_scale scales": "scale",
    "input_ids": "x", "gamma norm_weight": "weight", "beta": "bias", "add_residual residual_in": "residual",
    "w1 w13 w13_weight gate_up_proj fc1_expert_weights gemm1_weights": "up",
    "w2 w2_weight down_proj fc2_expert_weights gemm2_weights": "down",
    "w1_bias w13_bias gemm1_bias": "up_bias", "w2_bias gemm2_bias": "down_bias",
    "router_logits gating_output routing_logits": "logits",
    "topk_ids token_selected_experts selected_experts": "ids", "topk_weights token_final_scales routing_weights": "weights",
    "e_score_correction_bias routing_bias correction_bias": "correction",
    "cos_sin cos_sin_cache_tensor rope_cache": "cos_sin_cache", "pos_ids position_ids": "positions",
    "q_norm_weight": "q_weight", "k_norm_weight": "k_weight", "q_rope_out": "q_out", "k_rope_out": "k_out",
    "probs": "x|logits|target_probs", "logits": "x", "temperatures": "temperature",
    "top_ks top_k_arr": "top_k", "top_ps top_p_arr": "top_p", "min_ps min_p_arr": "min_p",
    "token_bitmask vocab_mask grammar_bitmask": "bitmask", "logit_bias": "bias", "seeds": "seed", "offsets": "offset",
    "repetition_penalties": "repetition", "frequency_penalties": "frequency", "presence_penalties": "presence",
    "draft_token_ids candidates": "draft_tokens",
    "retrive_next_token retrieve_next_token": "first_child", "retrive_next_sibling retrieve_next_sibling": "next_sibling",
    "accept_index accept_token_num output_accepted_token_num": "accepted", "predicts output_token_ids": "tokens",
    "samples next_token_ids sampled": "token",
})  # fmt: skip
