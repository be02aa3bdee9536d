"""FlashInfer's products against torch in f64, and their refusals."""

import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade.errors import MissingNameError, OpfacadeError

pytestmark = pytest.mark.usefixtures("one_thread")
gemm, E4M3, E5M2 = flashinfer.gemm, torch.float8_e4m3fn, torch.float8_e5m2
NEAR = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10, torch.float32: 1e-5}


def drawn(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def near(got, want, dtype=torch.bfloat16):
    assert (got.dtype, got.shape) == (dtype, want.shape)
    torch.testing.assert_close(got.double(), want.double(), rtol=NEAR[dtype], atol=1e-3)


def turned(x):
    """The same matrices, column-major."""
    return x.mT.contiguous().mT


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("bias", [False, True])
def test_mm_bf16_takes_both_orders_of_both_matrices(dtype, bias):
    a, b = drawn(5, 33), drawn(33, 7, seed=1)
    more = drawn(7, seed=2) if bias else None
    want = a.double() @ b.double() + (more.double() if bias else 0)
    gaps = torch.zeros(10, 66).bfloat16()[::2, ::2].copy_(a)
    for one in (a, turned(a), gaps):
        for other in (b, turned(b)):
            near(flashinfer.mm_bf16(one, other, more, out_dtype=dtype), want, dtype)
    out = torch.empty(5, 9, dtype=dtype)[:, 1:8]
    assert flashinfer.mm_bf16(a, b, bias=more, out=out, out_dtype=dtype, backend="cutlass", pdl=True) is out
    near(out, want, dtype)


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_bmm_bf16_has_any_number_of_matrices(batch):
    a, b = drawn(batch, 5, 33), drawn(batch, 33, 7, seed=1)
    for one, other in ((a, b), (turned(a), turned(b)), (a.transpose(0, 1).contiguous().transpose(0, 1), b)):
        near(flashinfer.bmm_bf16(one, other), one.double() @ other.double())


@pytest.mark.parametrize("kind", [E4M3, E5M2])
@pytest.mark.parametrize("batch", [1, 2])
def test_bmm_fp8_scales_both_factors(kind, batch):
    a, b = drawn(batch, 5, 40, dtype=kind), turned(drawn(batch, 40, 6, seed=1).float()).to(kind)
    of_a, of_b = torch.tensor(0.3), torch.tensor([[2.5]])
    want = a.double() @ b.double() * 0.3 * 2.5
    for dtype in NEAR:
        near(flashinfer.bmm_fp8(a, b, of_a, of_b, dtype), want, dtype)
    out = torch.empty(batch, 5, 6).half()
    assert flashinfer.bmm_fp8(a, b, of_a, of_b, torch.float16, out, "auto") is out


def in_blocks(m, n, k):
    """Quantised operands, their scales, and the product of the dequantised numbers."""
    a, b = drawn(m, k, dtype=E4M3), drawn(n, k, seed=1, dtype=E4M3)
    parts, blocks = -(-k // 128), -(-n // 128)
    of_a, of_b = drawn(m, parts, seed=2).float().abs() + 0.1, drawn(blocks, parts, seed=3).float().abs() + 0.1
    x = a.double() * of_a.double().repeat_interleave(128, 1)[:, :k]
    w = b.double() * of_b.double().repeat_interleave(128, 1)[:, :k].repeat_interleave(128, 0)[:n]
    return a, b, of_a, of_b, x @ w.T


@pytest.mark.parametrize(("m", "n", "k"), [(5, 272, 256), (3, 130, 140)])
def test_groupwise_scales_are_of_each_row_and_of_each_block(m, n, k):
    a, b, of_a, of_b, want = in_blocks(m, n, k)
    near(gemm.gemm_fp8_nt_groupwise(a, b, of_a, of_b, "K"), want)
    near(gemm.gemm_fp8_nt_groupwise(a, b, of_a.T.contiguous(), of_b.T.contiguous(), "MN", 2, out_dtype=torch.float16), want,
         torch.float16)  # fmt: skip
    near(gemm.gemm_fp8_nt_groupwise(a, b, turned(of_a), of_b, backend="cutile"), want)
    out = torch.empty(m, n, dtype=torch.float32)
    assert gemm.gemm_fp8_nt_groupwise(a, b, of_a, of_b, "K", out=out, out_dtype=torch.bfloat16) is out  # as there
    near(out, want, torch.float32)
    near(gemm.fp8_blockscale_gemm_sm90(a, b, of_a, of_b), want)


@pytest.mark.parametrize("aligned", [False, True])
def test_scales_of_the_quantisation_of_groups_are_taken(aligned):
    """Columns that are a multiple of 4 elements apart are valid strides."""
    x, b, of_b = drawn(5, 256), drawn(130, 256, seed=1, dtype=E4M3), drawn(2, 2, seed=3).float().abs() + 0.1
    a, of_a = flashinfer.quantization.per_token_group_quant_8bit(x, 128, column_major_scales=True, scale_tma_aligned=aligned)
    want = gemm.fp8_blockscale_gemm_sm90(a, b, of_a.contiguous(), of_b)
    assert torch.equal(gemm.fp8_blockscale_gemm_sm90(a, b, of_a, of_b), want)


def test_tinygemm_is_a_linear_layer():
    x, weight, bias, out = drawn(3, 64), drawn(16, 64, seed=1), drawn(16, seed=2), torch.empty(3, 16).bfloat16()
    assert gemm.tinygemm_bf16(x, weight, out, bias, True) is None
    near(out, x.double() @ weight.double().T + bias.double())


A, B, ONE = drawn(3, 8), drawn(8, 5, seed=1), torch.ones(1)
F8, F8B, S = drawn(3, 128, dtype=E4M3), drawn(5, 128, seed=1, dtype=E4M3), torch.ones(3, 1)
W = torch.ones(1, 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: flashinfer.mm_bf16(A.half(), B), "a expected torch.bfloat16"),
        (lambda: flashinfer.mm_bf16(A, B.half()), "b expected torch.bfloat16"),
        (lambda: flashinfer.mm_bf16(A, A), r"b expected \[k, n\] beside \[3, 8\]"),
        (lambda: flashinfer.mm_bf16(A, B, out_dtype=torch.int8), "out_dtype expected"),
        (lambda: flashinfer.mm_bf16(A, B, drawn(4)), r"bias expected \[5\]"),
        (lambda: flashinfer.mm_bf16(A, B, out=torch.empty(3, 5)), "out expected torch.bfloat16"),
        (lambda: flashinfer.mm_bf16(A, B, out=torch.empty(3, 4).bfloat16()), r"out expected \[3, 5\]"),
        (lambda: flashinfer.mm_bf16(A.clone().requires_grad_(), B), "a expected requires_grad=False"),
        (lambda: flashinfer.mm_bf16(A, B, out=A[:, :5]), "overlap"),
        (lambda: flashinfer.bmm_bf16(A[None].expand(2, 3, 8), B[None]), r"B expected \[b, k, n\]"),
        (lambda: flashinfer.bmm_fp8(F8[None], F8B.T[None], S, ONE, torch.half), "A_scale expected one element"),
        (lambda: flashinfer.bmm_fp8(F8[None], F8B.T[None], ONE, ONE.double(), torch.half), "B_scale expected torch.float32"),
        (lambda: flashinfer.bmm_fp8(F8[None], F8B.to(E5M2).T[None], ONE, ONE, torch.half), "B expected torch.float8_e4m3fn"),
        (lambda: flashinfer.bmm_fp8(F8[None], F8B.T[None], ONE, ONE, torch.int8), "dtype expected"),
        (lambda: gemm.gemm_fp8_nt_groupwise(F8, F8B, S, W), "scale_major_mode expected 'K' or 'MN', got None"),
        (lambda: gemm.gemm_fp8_nt_groupwise(F8, F8B, S, W, "MN"), r"a_scale expected \[1, 3\]"),
        (lambda: gemm.gemm_fp8_nt_groupwise(F8, F8B, S, S, "K"), r"b_scale expected \[1, 1\]"),
        (lambda: gemm.gemm_fp8_nt_groupwise(F8, F8B, S, W, "K", 1, (128, 128, 128)), "scale_granularity_mnk expected"),
        (lambda: gemm.fp8_blockscale_gemm_sm90(A, B.T), "input expected torch.float8_e4m3fn"),
        (lambda: gemm.fp8_blockscale_gemm_sm90(F8, F8B, S, None), "weight_scale expected a tensor"),
        (lambda: gemm.tinygemm_bf16(A, B.T, None), "out expected"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call, words):
    with pytest.raises(OpfacadeError, match=words):
        call()


@pytest.mark.parametrize("name", ["mm_fp8", "mm_fp4", "group_gemm_mxfp8_mxfp4_nt_groupwise", "gemm_fp8_nt_blockscaled"])
def test_products_without_an_equal_are_missing_by_name(name):
    with pytest.raises(MissingNameError, match=name):
        getattr(gemm, name)
