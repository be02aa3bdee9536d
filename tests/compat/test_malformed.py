"""Invalid values: the adapters refuse them by name, with an error of opfacade."""

import math

import numpy as np
import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade.compat.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from opfacade.errors import ArgumentError, ArgumentTypeError, ShapeError, UnsupportedError


def rows(*shape):
    return torch.ones(*shape, dtype=torch.float16)


def indices(*values):
    return torch.tensor(values, dtype=torch.int32)


X, W = rows(3, 16), rows(16)
FP8 = rows(3, 16).to(torch.float8_e4m3fn)
NUMBERS = [None, "x", [1.0], 10**400, np.zeros(2), torch.zeros(2)]


@pytest.mark.parametrize("value", NUMBERS, ids=lambda v: type(v).__name__)
def test_numbers(value):
    with pytest.raises(ArgumentError, match=r"rmsnorm.call: eps expected a number"):
        flashinfer.rmsnorm(X, W, eps=value)
    with pytest.raises(ArgumentError, match=r"apply_rope.call: rope_theta expected a number"):
        flashinfer.apply_rope(rows(3, 2, 8), rows(3, 1, 8), indices(0, 3), indices(0), rope_theta=value)
    with pytest.raises(ArgumentError, match=r"call: softcap expected a number"):
        flash_attn_func(rows(1, 2, 1, 16), rows(1, 2, 1, 16), rows(1, 2, 1, 16), softcap=value)
    if not isinstance(value, torch.Tensor):
        with pytest.raises(ArgumentError, match=r"rmsnorm_quant.call: scale expected a number"):
            flashinfer.rmsnorm_quant(FP8.clone(), X, W, value)
    if value is not None:
        with pytest.raises(ArgumentError, match=r"call: sm_scale expected a number"):
            flashinfer.single_decode_with_kv_cache(rows(2, 16), rows(4, 2, 16), rows(4, 2, 16), sm_scale=value)


def test_numbers_of_numpy_and_of_one_element_are_numbers():
    want = flashinfer.rmsnorm(X, W, eps=0.5)
    for eps in (np.float32(0.5), np.array(0.5), torch.tensor(0.5)):
        assert torch.equal(flashinfer.rmsnorm(X, W, eps=eps), want)


@pytest.mark.parametrize("out", [True, "x", np.zeros((3, 16)), X.to_sparse()], ids=lambda v: type(v).__name__)
def test_an_output_that_is_no_dense_tensor(out):
    calls = (
        lambda: flashinfer.rmsnorm(X, W, out=out),
        lambda: flashinfer.fused_rmsnorm_silu(X, W, out=out),
        lambda: flashinfer.silu_and_mul(rows(3, 32), out=out),
        lambda: flashinfer.rmsnorm_quant(out, X, W, 1.0),
    )
    for call in calls:
        with pytest.raises(ArgumentTypeError, match=r"out expected a (dense )?tensor"):
            call()


def test_inputs_that_are_no_dense_tensors():
    sparse, nested = torch.ones(3, 16).to_sparse(), torch.nested.nested_tensor([torch.ones(16)] * 3)
    for x in (sparse, nested):
        with pytest.raises(ArgumentTypeError, match=r"expected a dense tensor \[rows, "):
            flashinfer.softmax(x)
    with pytest.raises(ArgumentTypeError, match=r"input expected a dense tensor"):
        flashinfer.silu_and_mul(sparse)
    with pytest.raises(ArgumentTypeError, match=r"s_a expected a tensor"):
        flashinfer.merge_state(rows(3, 2, 8), None, rows(3, 2, 8), torch.zeros(3, 2))
    with pytest.raises(ArgumentTypeError, match=r"v expected a tensor"):
        flashinfer.merge_state(rows(3, 2, 8), torch.zeros(3, 2), None, torch.zeros(3, 2))


@pytest.mark.parametrize("size", [0, -1, None, 8.0, "x"])
def test_head_size(size):
    with pytest.raises(ArgumentError, match=r"head_size expected"):
        flashinfer.apply_rope_with_cos_sin_cache(torch.arange(3), rows(3, 32), X, size, torch.ones(9, 16))


def test_rotation():
    q, k = rows(3, 2, 8), rows(3, 1, 8)
    with pytest.raises(ArgumentError, match=r"rotary_dim expected an integer"):
        flashinfer.apply_rope(q, k, indices(0, 3), indices(0), rotary_dim="x")
    with pytest.raises(ArgumentError, match=r"indptr expected dtype int32 or int64"):
        flashinfer.apply_rope(q, k, torch.tensor([0.0, 3.0]), indices(0))
    with pytest.raises(ArgumentError, match=r"offsets expected the device of indptr, meta"):
        flashinfer.apply_rope(q, k, indices(0, 3).to("meta"), indices(0))
    with pytest.raises(ArgumentTypeError, match=r"positions expected a tensor"):
        flashinfer.apply_rope_with_cos_sin_cache(None, rows(3, 32), X, 16, torch.ones(9, 16))


def test_flash_attention():
    q, kv = rows(1, 2, 1, 16), rows(1, 2, 1, 16)
    for slopes in (True, np.zeros(1)):
        with pytest.raises(ArgumentTypeError, match="alibi_slopes expected a tensor"):
            flash_attn_func(q, kv, kv, alibi_slopes=slopes)
    for splits in ("x", np.zeros(2), 1.5):
        with pytest.raises(ArgumentError, match="num_splits expected an integer"):
            flash_attn_with_kvcache(q, kv, kv, cache_seqlens=indices(2), num_splits=splits)
    for length in (2**70, -1, 3, True):
        with pytest.raises(ArgumentError, match="cache_seqlens expected"):
            flash_attn_with_kvcache(q, kv, kv, cache_seqlens=length)
    for side in ("a", 1.5, np.zeros(1)):
        with pytest.raises(ArgumentError, match="window_size expected an integer"):
            flash_attn_func(q, kv, kv, window_size=(side, 0))
    for s_aux in (1.0, np.zeros(1)):
        with pytest.raises(ArgumentTypeError, match="s_aux expected a tensor"):
            flash_attn_with_kvcache(q, kv, kv, cache_seqlens=indices(2), s_aux=s_aux)
    with pytest.raises(ArgumentTypeError, match="k expected a tensor"):
        flash_attn_varlen_func(q[0], np.zeros((2, 1, 16)), kv[0], indices(0, 2), indices(0, 2), 2, 2)


def test_sampling():
    with pytest.raises(ShapeError, match=r"logits expected at least one row, because indices refer to rows"):
        flashinfer.sampling.top_k_top_p_sampling_from_logits(torch.ones(0, 17), 3, 0.5, indices=indices(0, 1))
    with pytest.raises(ArgumentError, match=r"filter_apply_order expected"):
        flashinfer.sampling.top_k_top_p_sampling_from_logits(torch.ones(2, 17), 3, 0.5, filter_apply_order=np.zeros(2))
    with pytest.raises(UnsupportedError, match=r"temperature expected a number above 0, got nan"):
        flashinfer.softmax(torch.ones(2, 17), math.nan)


def test_packing():
    bits = torch.ones(9, dtype=torch.bool)
    with pytest.raises(ArgumentError, match=r"indptr expected a tensor with memory"):
        flashinfer.segment_packbits(bits, indices(0, 9).to("meta"))
    with pytest.raises(ArgumentError, match=r"bitorder expected"):
        flashinfer.packbits(bits, np.zeros(2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_rows_that_a_mask_leaves_out_keep_every_bit(dtype):
    """Including -0, and values of an empty state."""
    v, s = torch.tensor([[[1.0, -0.0]], [[2.0, 3.0]], [[1.0, 1.0]]], dtype=dtype), torch.tensor([[1.0], [-math.inf], [0.0]])
    before, other = v.clone(), torch.full_like(v, 9.0)
    flashinfer.merge_state_in_place(v, s, other, torch.zeros(3, 1), mask=torch.tensor([False, False, True]))
    assert torch.equal(v[:2], before[:2])
    assert math.copysign(1, v[0, 0, 1]) < 0
    assert s[:2].flatten().tolist() == [1.0, -math.inf]
    assert v[2].flatten().tolist() == [5.0, 5.0]
    assert s[2].item() == pytest.approx(1.0)


@pytest.mark.parametrize("mask", [torch.ones(2).bool(), torch.tensor(True), np.ones(3), torch.ones(3, device="meta").bool()])
def test_a_mask_that_does_not_fit(mask):
    with pytest.raises(ArgumentError, match=r"mask expected"):
        flashinfer.merge_state_in_place(rows(3, 1, 8), torch.zeros(3, 1), rows(3, 1, 8), torch.zeros(3, 1), mask=mask)
