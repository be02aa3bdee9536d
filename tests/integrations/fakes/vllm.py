"""The part of vLLM 0.33 from which the adapter derives and which calls it."""

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
    def process_weights_after_loading(self, act_dtype):
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
    """A separate registry for each test; `entered` lists the registered entries."""
    entered = {}

    class AttentionBackendEnum:
        __members__ = entered

    def register_backend(backend, class_path=None, is_mamba=False):
        if backend in entered:
            raise ValueError(f"Backend {backend} already exists")
        entered[backend] = class_path

    return {"AttentionBackendEnum": AttentionBackendEnum, "register_backend": register_backend, "entered": entered}


# -- sampling ---------------------------------------------------------------------------------------------------------


@dataclass
class SamplerOutput:
    sampled_token_ids: torch.Tensor
    logprobs_tensors: object


class LogitsProcessors:
    def __init__(self, logitsprocs=None):
        self.argmax_invariant = [p for p in logitsprocs or () if p.is_argmax_invariant()]
        self.non_argmax_invariant = [p for p in logitsprocs or () if not p.is_argmax_invariant()]


class MinPLogitsProcessor:
    def __init__(self, min_p):
        self.min_p, self.min_p_count = torch.tensor(min_p)[:, None], sum(p > 0 for p in min_p)

    def is_argmax_invariant(self):
        return True

    def apply(self, logits):
        if not self.min_p_count:
            return logits
        probs = logits.softmax(-1)
        return logits.masked_fill(probs < self.min_p * probs.amax(-1, keepdim=True), -torch.inf)


class LogitBiasLogitsProcessor:
    def __init__(self, biases):
        self.biases, self.bias_tensor = biases, torch.tensor([v for row in biases.values() for v in row.values()])

    def is_argmax_invariant(self):
        return False

    def apply(self, logits):
        for row, entries in self.biases.items():
            for token, value in entries.items():
                logits[row, token] += value
        return logits


class MinTokensLogitsProcessor:
    def __init__(self, min_toks):
        self.min_toks = min_toks

    def is_argmax_invariant(self):
        return False

    def apply(self, logits):
        for row, stops in self.min_toks.items():
            logits[row, stops] = -torch.inf
        return logits


@dataclass
class SamplingMetadata:
    temperature: torch.Tensor | None
    all_greedy: bool
    all_random: bool
    top_p: torch.Tensor | None
    top_k: torch.Tensor | None
    generators: dict
    max_num_logprobs: int | None
    no_penalties: bool
    prompt_token_ids: torch.Tensor | None
    frequency_penalties: torch.Tensor
    presence_penalties: torch.Tensor
    repetition_penalties: torch.Tensor
    output_token_ids: list
    allowed_token_ids_mask: torch.Tensor | None
    bad_words_token_ids: dict
    logitsprocs: LogitsProcessors
    logprob_token_ids: dict | None = None
    spec_token_ids: list | None = None
    thinking_budget_state_holder: object = None


class Sampler(torch.nn.Module):
    """vLLM's steps in order, each as a formula."""

    def __init__(self, logprobs_mode="raw_logprobs", use_fp64_gumbel=False):
        super().__init__()
        self.logprobs_mode, self.adjusted = logprobs_mode, 0

    def forward(self, logits, sampling_metadata, predict_bonus_token=False, logprobs_mode_override=None):
        raw = logits.float().log_softmax(-1) if sampling_metadata.max_num_logprobs is not None else None
        logits = self.apply_logits_processors(logits.float(), sampling_metadata, predict_bonus_token)
        sampled, _ = self.sample(logits, sampling_metadata)
        found = None if raw is None else raw.gather(1, sampled.long()[:, None])
        return SamplerOutput(sampled.int()[:, None], found)

    def sample(self, logits, sampling_metadata, logprobs_mode_override=None):
        raise NotImplementedError

    @staticmethod
    def apply_temperature(logits, temp, all_random):
        return logits / torch.where(temp < 1e-5, 1.0, temp)[:, None]

    def apply_logits_processors(self, logits, sampling_metadata, predict_bonus_token):
        self.adjusted += 1
        given = sampling_metadata
        if given.allowed_token_ids_mask is not None:
            logits = logits.masked_fill(given.allowed_token_ids_mask, -torch.inf)
        for row, words in given.bad_words_token_ids.items():
            logits[row, [word[-1] for word in words]] = -torch.inf
        for processor in given.logitsprocs.non_argmax_invariant:
            logits = processor.apply(logits)
        if not given.no_penalties:
            self._penalize(logits, given)
        return logits

    @staticmethod
    def _penalize(logits, given):
        for row, output in enumerate(given.output_token_ids):
            prompt = [t for t in given.prompt_token_ids[row].tolist() if t < logits.shape[1]]
            for token in {*prompt, *output}:
                a, r = logits[row, token], given.repetition_penalties[row]
                logits[row, token] = a / r if a > 0 else a * r
            for token in set(output):
                logits[row, token] -= given.frequency_penalties[row] * output.count(token)
                logits[row, token] -= given.presence_penalties[row]


SAMPLING = {
    name: globals()[name]
    for name in (
        "SamplerOutput", "LogitsProcessors", "MinPLogitsProcessor", "LogitBiasLogitsProcessor", "MinTokensLogitsProcessor",
        "SamplingMetadata", "Sampler",
    )
}  # fmt: skip


# -- the second runner ------------------------------------------------------------------------------------------------


class SamplingStates:
    def __init__(self, max_num_reqs, vocab_size):
        def held(dtype, value=0):
            return type("Held", (), {"gpu": torch.full((max_num_reqs,), value, dtype=dtype)})()

        self.temperature, self.seeds = held(torch.float32), held(torch.int64)
        self.top_k, self.top_p, self.min_p = held(torch.int32, vocab_size), held(torch.float32, 1.0), held(torch.float32)


class RunnerSampler:
    """vLLM's steps in order: the temperature, min_p, then filters and the draw, which an adapter replaces."""

    def __init__(
        self, vllm_config, max_num_reqs, vocab_size, device, req_states, logprobs_mode="raw_logprobs",
        num_speculative_tokens=1, use_fp64_gumbel=False, enable_trace_replay=False, return_sampling_mask=False,
        custom_logits_processors=(),
    ):  # fmt: skip
        self.sampling_states = SamplingStates(max_num_reqs, vocab_size)

    def sample(
        self, logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, input_ids, expanded_local_pos,
        seq_lens_upper_bound_np, return_logprobs=False,
    ):  # fmt: skip
        states, rows = self.sampling_states, expanded_idx_mapping
        temperature = states.temperature.gpu[rows]
        logits = logits.float() / temperature.where(temperature > 0, 1.0)[:, None]
        probs = logits.softmax(-1)
        logits = logits.masked_fill(probs < states.min_p.gpu[rows][:, None] * probs.amax(-1, keepdim=True), -torch.inf)
        filters = (states.top_k.gpu[rows], states.top_p.gpu[rows])
        return self._sample_random(logits, rows, idx_mapping_np, pos, *filters, True, False)

    def _sample_random(
        self, processed_logits, expanded_idx_mapping, idx_mapping_np, pos, top_k, top_p, has_topp_only_rows, use_fused_sampler
    ):
        raise NotImplementedError


RunnerSampler.__name__ = "Sampler"
SECOND = {"Sampler": RunnerSampler, "SamplingStates": SamplingStates}
