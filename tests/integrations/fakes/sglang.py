"""The part of SGLang 0.5.23 from which the adapter derives and which calls it."""

from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from types import SimpleNamespace
from typing import Any

import torch


class AttentionBackend:
    needs_cpu_seq_lens = True

    def init_forward_metadata(self, forward_batch):
        self.init_forward_metadata_out_graph(forward_batch)
        self.init_forward_metadata_in_graph(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        pass

    def init_forward_metadata_in_graph(self, forward_batch):
        pass

    def init_cuda_graph_state(self, max_bs, max_num_tokens):
        raise NotImplementedError

    def get_cuda_graph_seq_len_fill_value(self):
        raise NotImplementedError

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        raise NotImplementedError

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        raise NotImplementedError

    def support_triton(self):
        return True


class AttentionType(Enum):
    DECODER = "decoder"
    DECODER_BIDIRECTIONAL = "decoder_bidirectional"
    ENCODER_ONLY = "encoder_only"


class ForwardMode(IntEnum):
    EXTEND = auto()
    DECODE = auto()
    MIXED = auto()
    IDLE = auto()
    TARGET_VERIFY = auto()

    def is_decode(self):
        return self == ForwardMode.DECODE

    def is_idle(self):
        return self == ForwardMode.IDLE

    def is_decode_or_idle(self):
        return self in (ForwardMode.DECODE, ForwardMode.IDLE)

    def is_extend_without_speculative(self):
        return self in (ForwardMode.EXTEND, ForwardMode.MIXED)


@dataclass
class ForwardBatch:
    forward_mode: ForwardMode
    batch_size: int
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    out_cache_loc: torch.Tensor
    seq_lens_sum: int = -1
    seq_lens_cpu: Any = None
    extend_seq_lens: torch.Tensor | None = None
    out_cache_loc_is_physical: bool = False


@dataclass(frozen=True)
class KVWriteLoc:
    loc: torch.Tensor
    swa_loc: torch.Tensor | None = None
    full_loc: torch.Tensor | None = None
    physical: bool = False

    @classmethod
    def for_batch(cls, forward_batch, *, swa_loc=None, full_loc=None):
        return cls(forward_batch.out_cache_loc, swa_loc, full_loc, physical=forward_batch.out_cache_loc_is_physical)


class MHATokenToKVPool:
    """Rows of tokens, or with a page size, pages with the head axis first, as with SGLANG_USE_HND_KVCACHE."""

    is_quantized_kv_cache = False

    def __init__(self, k, v, page_size=0):
        self.k, self.v, self.page_size = k, v, page_size
        self.kv_cache_layout = "hnd" if page_size else "nhd"

    def get_kv_buffer(self, layer_id):
        return self.k[layer_id], self.v[layer_id]

    def set_kv_buffer(
        self, layer, loc_info, cache_k, cache_v, k_scale=None, v_scale=None, layer_id_override=None, dcp_kv_mask=None
    ):
        for buffer, new, scale in ((self.k, cache_k, k_scale), (self.v, cache_v, v_scale)):
            own = buffer[layer.layer_id]
            if new.dtype != own.dtype:
                new = (new if scale is None else new.div_(scale)).to(own.dtype)
            place = (
                (loc_info.loc // self.page_size, slice(None), loc_info.loc % self.page_size) if self.page_size else loc_info.loc
            )
            own.view(_BITS[own.itemsize])[place] = new.view(_BITS[own.itemsize])


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


class RadixAttention(torch.nn.Module):
    """A layer as a model sees it: `layer` without the module."""

    def __init__(self, **fields):
        super().__init__()
        self.__dict__.update(vars(layer(**fields)))


class Algorithm(Enum):
    NONE = "none"
    EAGLE = "eagle"

    def is_none(self):
        return self == Algorithm.NONE


def layer(**fields):
    """A RadixAttention of 4 heads over 2, as a model creates it."""
    given = {
        "tp_q_head_num": 4, "tp_k_head_num": 2, "qk_head_dim": 16, "v_head_dim": 16, "scaling": 0.25, "layer_id": 0,
        "logit_cap": 0.0, "logit_capping_method": "tanh", "sliding_window_size": -1, "is_cross_attention": False,
        "attn_type": AttentionType.DECODER, "k_scale": None, "v_scale": None,
    }  # fmt: skip
    return SimpleNamespace(**(given | fields))


def registry():
    entered = {}

    def register_attention_backend(name):
        return lambda function: entered.setdefault(name, function)

    return {"register_attention_backend": register_attention_backend, "entered": entered}


@dataclass
class SamplingBatchInfo:
    temperatures: torch.Tensor
    top_ps: torch.Tensor
    top_ks: torch.Tensor
    min_ps: torch.Tensor
    is_all_greedy: bool = False
    is_any_greedy: bool = False
    need_top_p_sampling: bool = False
    need_top_k_sampling: bool = False
    need_min_p_sampling: bool = False
    vocab_size: int = 0
    sampling_seed: torch.Tensor | None = None
    sampling_mask_batch_indices: torch.Tensor | None = None


class Sampler(torch.nn.Module):
    rl_on_policy_target = None

    def __init__(self):
        super().__init__()
        self.synced = []

    def _preprocess_logits(self, logits, sampling_info):
        return logits

    def forward(
        self, logits_output, sampling_info, return_logprob, top_logprobs_nums, token_ids_logprobs, positions, *,
        logprob_logits=None,
    ):  # fmt: skip
        """SGLang's path for log probabilities: they are computed from the logits over the temperature."""
        assert return_logprob
        probs = (logits_output.next_token_logits / sampling_info.temperatures).softmax(-1)
        token, _ = self._sample_from_probs(probs, sampling_info, positions, False)
        logits_output.next_token_logprobs = probs.log().gather(1, token.long()[:, None])[:, 0]
        self._sync_token_ids_across_tp(token, sampling_info)
        return token

    def _sample_from_probs(self, probs, sampling_info, positions, simple_sampling_case):
        raise ValueError("Invalid sampling backend: opfacade")

    def _sync_token_ids_across_tp(self, batch_next_token_ids, sampling_info):
        self.synced.append(batch_next_token_ids)


def sampler_registry():
    factories = {}

    def register_sampler_backend(backend, factory):
        factories[backend] = factory

    return {"register_sampler_backend": register_sampler_backend, "Sampler": Sampler, "factories": factories}
