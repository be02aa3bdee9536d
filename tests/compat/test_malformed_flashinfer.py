"""Each tensor argument of FlashInfer's functions is replaced by None, a text, a list, a tensor of another rank and a sparse
tensor, and each other argument by a tensor and a list. The answer is an opfacade error, or a result if the value has no effect.
"""

import contextlib
import inspect
from collections.abc import Mapping

import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade.errors import ArgumentError, OpfacadeError

pytestmark = pytest.mark.usefixtures("one_thread")

DIM, PAGE, LATENT, ROPE = 16, 4, 32, 8


def indices(*values):
    return torch.tensor(values, dtype=torch.int32)


def rows(*shape):
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def buffer():
    return torch.empty(1 << 14, dtype=torch.uint8)


class Planned:
    """plan() and run() of a wrapper as one call; arguments of run() are passed to run()."""

    def __init__(self, make, run="run", plan="plan"):
        self.make, self.names = make, (plan, run)

    def __call__(self, **given):
        wrapper = self.make()
        plan, run = (getattr(wrapper, name) for name in self.names)
        takes = _parameters(run)
        later = {name: given[name] for name in given if name in takes and name not in _parameters(plan)}
        plan(**{name: value for name, value in given.items() if name not in later})
        return run(**later)

    def parameters(self):
        wrapper = self.make()
        plan, run = (_parameters(getattr(wrapper, name)) for name in self.names)
        return run | plan


def _parameters(call):
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p.default for name, p in inspect.signature(call).parameters.items() if p.kind not in kinds}


Q, KV = rows(2, 4, DIM), rows(6, 2, PAGE, 2, DIM)
PAGED = {"num_qo_heads": 4, "num_kv_heads": 2, "page_size": PAGE, "q_data_type": torch.float32}
TABLE = {"indptr": indices(0, 2, 3), "indices": indices(0, 4, 5), "last_page_len": indices(3, 1)}
PREFIXED = {f"paged_kv_{name}": value for name, value in TABLE.items()}
QO = indices(0, 1, 2)
MLA = {"q_nope": rows(2, 4, LATENT), "q_pe": rows(2, 4, ROPE)}
MLA_PAGES = {"ckv_cache": rows(6, PAGE, LATENT), "kpe_cache": rows(6, PAGE, ROPE)}
MLA_SIZES = {"num_heads": 4, "head_dim_ckv": LATENT, "head_dim_kpe": ROPE, "page_size": PAGE, "causal": False, "sm_scale": 0.1}
APPENDED = {"batch_indices": indices(0, 0, 1), "positions": indices(3, 4, 0)}
KV_TABLE = {f"kv_{name}": value for name, value in TABLE.items()}
V3, S3, X = rows(3, 4, DIM), rows(3, 4), rows(3, 32)
BF16, F8, ONE = X.bfloat16(), rows(2, 3, 32).to(torch.float8_e4m3fn), torch.ones(1)
OF_GROUPS = {"b": F8, "b_scale": rows(2, 1, 1)}
PROBS = torch.softmax(rows(3, 9), -1)
ROTATED = {"q": rows(5, 4, DIM), "k": rows(5, 2, DIM)}

CALLS: dict[str, tuple[object, Mapping[str, object]]] = {
    "decode": (
        Planned(lambda: flashinfer.BatchDecodeWithPagedKVCacheWrapper(buffer())),
        TABLE | PAGED | {"head_dim": DIM, "q": Q, "paged_kv_cache": KV},
    ),
    "prefill": (
        Planned(lambda: flashinfer.BatchPrefillWithPagedKVCacheWrapper(buffer())),
        PREFIXED | PAGED | {"qo_indptr": QO, "head_dim_qk": DIM, "q": Q, "paged_kv_cache": KV},
    ),
    "ragged": (
        Planned(lambda: flashinfer.BatchPrefillWithRaggedKVCacheWrapper(buffer())),
        {"qo_indptr": QO, "kv_indptr": indices(0, 3, 5), "num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": DIM}
        | {"q_data_type": torch.float32, "q": Q, "k": rows(5, 2, DIM), "v": rows(5, 2, DIM)},
    ),
    "mixed batch": (
        Planned(lambda: flashinfer.BatchAttention(device="cpu")),
        PAGED
        | {"qo_indptr": QO, "kv_indptr": indices(0, 2, 3), "kv_indices": indices(0, 4, 5), "kv_len_arr": indices(7, 1)}
        | {"head_dim_qk": DIM, "head_dim_vo": DIM, "kv_data_type": torch.float32, "q": Q, "kv_cache": KV},
    ),
    "latent": (
        Planned(lambda: flashinfer.BatchMLAPagedAttentionWrapper(buffer())),
        {"qo_indptr": QO, "kv_indptr": indices(0, 2, 3), "kv_indices": indices(0, 4, 5), "kv_len_arr": indices(7, 1)}
        | {"q_data_type": torch.float32, "kv_data_type": torch.float32}
        | MLA | MLA_PAGES | MLA_SIZES,
    ),
    "older latent": (
        Planned(lambda: flashinfer.BatchDecodeMlaWithPagedKVCacheWrapper(buffer())),
        TABLE | MLA | {"num_qo_heads": 4, "head_dim_compressed_kv": LATENT, "page_size": PAGE, "sm_scale": 0.1}
        | {f"paged_{name}": value for name, value in MLA_PAGES.items()} | {"data_type": torch.float32},
    ),
    "single decode": (flashinfer.single_decode_with_kv_cache, {"q": Q[0], "k": rows(9, 2, DIM), "v": rows(9, 2, DIM)}),
    "single prefill": (flashinfer.single_prefill_with_kv_cache, {"q": Q, "k": rows(9, 2, DIM), "v": rows(9, 2, DIM)}),
    "merge_state": (flashinfer.merge_state, {"v_a": V3, "s_a": S3, "v_b": V3, "s_b": S3}),
    "merge_states": (flashinfer.merge_states, {"v": rows(3, 2, 4, DIM), "s": rows(3, 2, 4)}),
    "merge_state_in_place": (flashinfer.merge_state_in_place, {"v": V3, "s": S3, "v_other": V3, "s_other": S3}),
    "append": (
        flashinfer.append_paged_kv_cache,
        APPENDED | KV_TABLE | {"append_key": rows(3, 2, DIM), "append_value": rows(3, 2, DIM), "paged_kv_cache": KV},
    ),
    "latent append": (
        flashinfer.append_paged_mla_kv_cache,
        APPENDED | KV_TABLE | {"append_ckv": rows(3, LATENT), "append_kpe": rows(3, ROPE)} | MLA_PAGES,
    ),
    "get_seq_lens": (flashinfer.get_seq_lens, {"kv_indptr": QO, "kv_last_page_len": indices(3, 1), "page_size": PAGE}),
    "positions": (
        flashinfer.get_batch_indices_positions,
        {"append_indptr": indices(0, 2, 3), "seq_lens": indices(5, 1), "nnz": 3},
    ),
    "packbits": (flashinfer.packbits, {"x": torch.ones(9).bool()}),
    "segment_packbits": (flashinfer.segment_packbits, {"x": torch.ones(9).bool(), "indptr": indices(0, 4, 9)}),
    "softmax": (flashinfer.softmax, {"logits": PROBS}),
    "from logits": (flashinfer.sampling.sampling_from_logits, {"logits": PROBS}),
    "filtered": (flashinfer.sampling.top_k_top_p_sampling_from_probs, {"probs": PROBS, "top_k": 3, "top_p": 0.5}),
    "renorm": (flashinfer.sampling.top_k_renorm_probs, {"probs": PROBS, "top_k": 3}),
    "top_k": (flashinfer.top_k, {"input": PROBS, "k": 3}),
    "rmsnorm": (flashinfer.rmsnorm, {"input": X, "weight": rows(32)}),
    "fused_add_rmsnorm": (flashinfer.fused_add_rmsnorm, {"input": X, "residual": X, "weight": rows(32)}),
    "silu_and_mul": (flashinfer.silu_and_mul, {"input": X}),
    "mm": (flashinfer.mm_bf16, {"a": BF16, "b": BF16.T}),
    "bmm": (flashinfer.bmm_fp8, {"A": F8, "B": F8.mT, "A_scale": ONE, "B_scale": ONE, "dtype": torch.bfloat16}),
    "groups": (
        flashinfer.gemm.gemm_fp8_nt_groupwise,
        {"a": F8[0], "b": F8[0], "a_scale": rows(3, 1), "b_scale": rows(1, 1), "scale_major_mode": "K"},
    ),
    "blocks": (
        flashinfer.gemm.fp8_blockscale_gemm_sm90,
        {"input": F8[0], "weight": F8[0], "input_scale": rows(3, 1), "weight_scale": rows(1, 1)},
    ),
    "tiny": (flashinfer.gemm.tinygemm_bf16, {"input": BF16, "weight": BF16, "out": torch.empty(3, 3).bfloat16()}),
    "segments": (
        flashinfer.SegmentGEMMWrapper(ONE).run,
        {"x": BF16, "weights": BF16[None], "batch_size": 1, "weight_column_major": True, "seg_lens": indices(3)},
    ),
    "groups of rows": (
        flashinfer.gemm.group_gemm_fp8_nt_groupwise,
        OF_GROUPS | {"a": F8[0], "a_scale": rows(3, 1), "m_indptr": indices(0, 1, 3), "scale_major_mode": "K"},
    ),
    "rows of groups": (
        flashinfer.gemm.group_deepgemm_fp8_nt_groupwise,
        OF_GROUPS | {"a": F8[0], "a_scale": rows(3, 1), "m_indices": indices(0, 0, -1)},
    ),
    "masked groups": (
        flashinfer.gemm.batch_deepgemm_fp8_nt_groupwise,
        OF_GROUPS | {"a": F8, "a_scale": rows(2, 3, 1), "masked_m": indices(2, 3), "expected_m": 2},
    ),
    "experts": (
        flashinfer.cutlass_fused_moe,
        {"input": BF16, "token_selected_experts": indices(0, 0, 0)[:, None], "token_final_scales": rows(3, 1)}
        | {"fc1_expert_weights": rows(1, 4, BF16.shape[1]).bfloat16(), "output_dtype": torch.bfloat16, "quant_scales": None}
        | {"fc2_expert_weights": rows(1, BF16.shape[1], 2).bfloat16()},
    ),
    "rope": (flashinfer.apply_rope, ROTATED | {"indptr": indices(0, 2, 5), "offsets": indices(3, 1)}),
    "rope of positions": (flashinfer.apply_rope_pos_ids, ROTATED | {"pos_ids": indices(0, 1, 2, 3, 4)}),
    "rope of a table": (
        flashinfer.apply_rope_with_cos_sin_cache,
        {"positions": indices(0, 1, 2, 3, 4), "query": rows(5, 64), "key": rows(5, 32), "head_size": DIM}
        | {"cos_sin_cache": rows(9, DIM)},
    ),
}  # fmt: skip
NO_TENSORS = [None, "x", [1, 2], torch.eye(4).to_sparse(), torch.ones(1, 1, 1, 1, 1, 1)]
NO_SCALARS = [torch.ones(2), torch.eye(2).to_sparse(), [1, 2], {}]
# Tensors without effect, and optional tensors.
FREE = {"kv_last_page_len", "seq_lens", "block_tables", "ckv_cache", "kpe_cache", "seq_lens_q"}
REQUIRED = {"get_seq_lens", "positions"}


def copied(given):
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in given.items()}


@pytest.mark.parametrize("name", CALLS)
def test_no_value_raises_an_error_of_another_library(name):
    call, base = CALLS[name]
    call(**copied(base))
    for argument, value in base.items():
        required = argument not in FREE or name in REQUIRED
        for bad in NO_TENSORS if isinstance(value, torch.Tensor) else []:
            given = copied(base) | {argument: bad}
            if required:
                with pytest.raises(ArgumentError):
                    call(**given)
            else:
                _answer(call, given)
    for argument, default in (call.parameters() if isinstance(call, Planned) else _parameters(call)).items():
        if isinstance(base.get(argument, default), torch.Tensor):
            continue
        for bad in (*NO_SCALARS, "x"):
            _answer(call, copied(base) | {argument: bad})


def _answer(call, given):
    with contextlib.suppress(OpfacadeError):
        call(**given)


def test_a_cache_is_a_tensor_or_a_pair():
    call, base = CALLS["decode"]
    k = KV[:, 0]
    call(**(base | {"paged_kv_cache": [k, k]}))
    for cache in ((k, None), (None, k), (k, k, k), (k,), {}, (k, "x")):
        with pytest.raises(ArgumentError, match="paged_kv_cache"):
            call(**(base | {"paged_kv_cache": cache}))


def test_a_wrapper_has_a_workspace():
    names = ("BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper", "BatchMLAPagedAttentionWrapper")
    for name in names:
        for workspace in (None, "x", [1], torch.eye(2).to_sparse()):
            with pytest.raises(ArgumentError, match="float_workspace_buffer expected"):
                getattr(flashinfer, name)(workspace)
            with pytest.raises(ArgumentError, match="float_workspace_buffer expected"):
                getattr(flashinfer, name)(buffer()).reset_workspace_buffer(workspace)
    for device in ("x", 1.5, "xpu"):
        with pytest.raises(ArgumentError, match="device expected a device of this process"):
            flashinfer.BatchAttention(device=device)


@pytest.mark.parametrize("scale", ["q_scale", "k_scale", "v_scale"])
def test_a_factor_has_elements(scale):
    call, base = CALLS["single decode"]
    for value in (torch.empty(0), torch.eye(2).to_sparse(), [1, 2], "x"):
        with pytest.raises(ArgumentError, match=f"{scale} expected"):
            call(**base, **{scale: value})
