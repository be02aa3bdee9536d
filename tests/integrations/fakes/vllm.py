"""The part of vLLM 0.33 that the adapter derives from and is called with."""

from dataclasses import dataclass
from enum import Enum

import torch


class AttentionType(str, Enum):
    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"


@dataclass(frozen=True)
class MultipleOf:
    base: int


class AttentionBackend:
    supported_dtypes = (torch.float16, torch.bfloat16)
    supported_kv_cache_dtypes = ("auto", "float16", "bfloat16")
    forward_includes_kv_cache_update = True

    @classmethod
    def supports_dtype(cls, dtype):
        return dtype in cls.supported_dtypes

    @classmethod
    def supports_mm_prefix(cls):
        return False

    @classmethod
    def is_mla(cls):
        return False

    @classmethod
    def validate_configuration(
        cls, head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse, use_mm_prefix,
        use_per_head_quant_scales, device_capability, attn_type, has_sliding_window=False, use_non_causal=False,
        use_batch_invariant=False, use_kv_connector=False, use_pcp=False, use_adaptive_verification=False, use_dcp=False,
        use_rswa=False,
    ):  # fmt: skip
        checks = {
            "head_size": cls.supports_head_size(head_size), "dtype": cls.supports_dtype(dtype),
            "kv_cache_dtype": cls.supports_kv_cache_dtype(kv_cache_dtype), "block_size": cls.supports_block_size(block_size),
            "MLA": use_mla == cls.is_mla(), "attention sinks": not has_sink or cls.supports_sink(),
            "sliding window": not has_sliding_window or cls.supports_sliding_window(),
            "non-causal attention": not use_non_causal or cls.supports_non_causal(),
            "compute capability": cls.supports_compute_capability(device_capability),
            "attention type": cls.supports_attn_type(attn_type),
        }  # fmt: skip
        reason = cls.supports_combination(
            head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse, use_mm_prefix, device_capability
        )
        return [f"{name} not supported" for name, fine in checks.items() if not fine] + ([reason] if reason else [])


class AttentionMetadata:
    pass


@dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool = True


class AttentionCGSupport(Enum):
    ALWAYS = 3
    UNIFORM_BATCH = 2
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    NEVER = 0


class AttentionMetadataBuilder:
    _cudagraph_support = AttentionCGSupport.NEVER
    supports_update_block_table = False

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.kv_cache_spec, self.layer_names, self.vllm_config, self.device = kv_cache_spec, layer_names, vllm_config, device

    @classmethod
    def get_cudagraph_support(cls, vllm_config, kv_cache_spec):
        return cls._cudagraph_support

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        raise NotImplementedError

    def build_for_cudagraph_capture(self, common_attn_metadata):
        return self.build(common_prefix_len=0, common_attn_metadata=common_attn_metadata)

    def update_block_table(self, metadata, blk_table, slot_mapping):
        raise NotImplementedError


class AttentionImplBase:
    pass


class AttentionImpl(AttentionImplBase):
    def __init__(
        self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None, sliding_window=None, kv_cache_dtype="auto",
        logits_soft_cap=None, attn_type=AttentionType.DECODER, kv_sharing_target_layer_name=None,
    ):  # fmt: skip
        raise NotImplementedError

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
        raise NotImplementedError


BACKEND = {name: value for name, value in globals().items() if isinstance(value, type)}


def registry():
    """A registry of its own for each test: what was entered is in `entered`."""
    entered = {}

    class AttentionBackendEnum:
        __members__ = entered

    def register_backend(backend, class_path=None, is_mamba=False):
        if backend in entered:
            raise ValueError(f"Backend {backend} already exists")
        entered[backend] = class_path

    return {"AttentionBackendEnum": AttentionBackendEnum, "register_backend": register_backend, "entered": entered}
