"""FlashInfer's norms, gated activations and group quantisation: results have the bits of f64 rounded once, and refusals."""

import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade.compat.flashinfer import _norm_plans
from opfacade.errors import ArgumentError, ArgumentTypeError, OpfacadeError, ShapeError, UnsupportedError

EPS = 1e-5
NORMS = {"rmsnorm": 0.0, "gemma_rmsnorm": 1.0}
ADDED = {"fused_add_rmsnorm": 0.0, "gemma_fused_add_rmsnorm": 1.0}
ACTIVATIONS = {
    "silu_and_mul": torch.nn.functional.silu,
    "gelu_and_mul": torch.nn.functional.gelu,
    "gelu_tanh_and_mul": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(23)


def normed(x, weight, plus=0.0, eps=EPS):
    x = x.double()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (plus + weight.double())


def saturated(x, dtype):
    largest = torch.finfo(dtype).max
    return x.float().clamp(-largest, largest).to(dtype)


def same_bits(got, want):
    """Equal elements, and the same dtype; fp8 has no comparison operator."""
    assert got.dtype == want.dtype
    assert torch.equal(got.float(), want.float())


def nan_like(x, **more):
    return torch.empty_like(x, **more).fill_(float("nan"))


def rows(form, dtype=torch.bfloat16):
    """7 rows of 65 elements, or 7 rows of 3 heads of 65."""
    wide = torch.randn(7, 5, 130).to(dtype)
    return {
        "rows": wide[:, 0, :65].contiguous(),
        "rows apart": wide[:, 0, :65],
        "heads": wide[:, :3, :65].contiguous(),
        "heads of qkv": wide.view(7, 10, 65)[:, 2:5],
        "heads apart": wide[:, :3, :65],
        "one head": wide[:, 2:3, :65],
        "no row": wide[:0, 0, :65],
        "no heads": wide[:, :0, :65],
    }[form]


FORMS = ("rows", "rows apart", "heads", "heads of qkv", "heads apart", "one head", "no row", "no heads")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_rows_and_heads(name, form):
    x, weight = rows(form), torch.randn(65).bfloat16()
    want = normed(x, weight, NORMS[name]).bfloat16()
    before = x.clone()
    got = getattr(flashinfer, name)(x, weight, EPS)
    same_bits(got, want)
    out = nan_like(x)
    assert getattr(flashinfer.norm, name)(x, weight, EPS, out, enable_pdl=True) is out
    same_bits(out, want)
    assert torch.equal(x, before)


@pytest.mark.parametrize("form", FORMS)
def test_out_may_be_input_and_its_neighbours_stay(form):
    x, weight = rows(form), torch.randn(65).bfloat16()
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    touched = torch.zeros(whole.shape[0], dtype=torch.bool)
    touched.as_strided(x.shape, x.stride(), x.storage_offset()).fill_(True)
    before, want = whole.clone(), normed(x, weight).bfloat16()
    assert flashinfer.rmsnorm(x, weight, EPS, out=x) is x
    same_bits(x, want)
    assert torch.equal(whole[~touched], before[~touched])


@pytest.mark.parametrize(("dtype", "near"), [(torch.float16, 0), (torch.float32, 1e-6)])
def test_weights_may_have_another_dtype(dtype, near):
    """Results in f16 have the bits of f64 rounded once."""
    x, weight = rows("heads of qkv", dtype), torch.randn(65, dtype=torch.float32)
    got = flashinfer.rmsnorm(x, weight)
    torch.testing.assert_close(got, normed(x, weight, eps=1e-6).to(dtype), rtol=near, atol=near)
    x, (gamma, beta) = rows("rows apart", dtype), torch.randn(2, 65)
    want = torch.nn.functional.layer_norm(x.double(), (65,), gamma.double(), beta.double(), 1e-6)
    torch.testing.assert_close(flashinfer.layernorm(x, gamma, beta), want.to(dtype), rtol=near, atol=near)


@pytest.mark.parametrize("name", ADDED)
def test_the_norm_is_of_the_sum_before_it_is_rounded(name):
    x, weight = rows("rows apart"), torch.randn(65).bfloat16()
    residual = torch.randn(7, 65).bfloat16()
    total = x.double() + residual.double()
    want, rounded = (normed(part, weight, ADDED[name]).bfloat16() for part in (total, total.bfloat16()))
    assert not torch.equal(want, rounded)
    assert getattr(flashinfer, name)(x, residual, weight, EPS) is None
    same_bits(x, want)
    same_bits(residual, total.bfloat16())


@pytest.mark.parametrize("scale", [0.25, torch.tensor(0.25), torch.tensor([0.25]), torch.tensor([[0.25]], dtype=torch.float16)])
@pytest.mark.parametrize("dtype", FP8)
def test_quantised_norms_divide_by_the_scale_and_saturate(dtype, scale):
    x, weight, residual = rows("rows apart"), torch.randn(65).bfloat16() * 300, torch.randn(7, 65).bfloat16()
    before, total = x.clone(), x.double() + residual.double()
    want, out = saturated(normed(x, weight) / 0.25, dtype), torch.empty(7, 65, dtype=dtype)
    flashinfer.rmsnorm_quant(out, x, weight, scale, EPS)
    same_bits(out, want)
    if dtype == torch.float8_e4m3fn:
        assert (out.float().abs() == 448).any()
    flashinfer.fused_add_rmsnorm_quant(out, x, residual, weight, scale, EPS)
    same_bits(out, saturated(normed(total, weight) / 0.25, dtype))
    same_bits(residual, total.bfloat16())
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, *FP8])
def test_silu_of_a_norm(dtype):
    x, weight = rows("rows apart"), torch.randn(65).bfloat16() * 300
    want = torch.nn.functional.silu(normed(x, weight))
    want = want.bfloat16() if dtype == torch.bfloat16 else saturated(want, dtype)
    out = torch.empty(7, 130, dtype=dtype)[:, 3:68]
    assert flashinfer.fused_rmsnorm_silu(x, weight, EPS, out) is out
    same_bits(out, want)
    if dtype == torch.bfloat16:
        same_bits(flashinfer.fused_rmsnorm_silu(x, weight, EPS), want)
        assert flashinfer.fused_rmsnorm_silu(x, weight, EPS, x) is x
        same_bits(x, want)


@pytest.mark.parametrize("dtype", FP8)
def test_a_quantised_layer_norm_is_rounded_to_the_dtype_of_input_before(dtype):
    x, (gamma, beta) = torch.randn(70, 165).bfloat16(), torch.randn(2, 165)
    full = torch.nn.functional.layer_norm(x.double(), (165,), gamma.double(), beta.double(), EPS)
    third = torch.tensor(0.3).double()  # as f32
    want, once = (saturated(part.double() / third, dtype) for part in (full.bfloat16(), full))
    assert not torch.equal(want.float(), once.float())
    out = torch.empty(70, 165, dtype=dtype)
    flashinfer.layernorm_quant(out, x, gamma, beta, torch.tensor([0.3], dtype=torch.float64), EPS)
    same_bits(out, want)


def test_facts_that_were_seen_make_no_descriptor(monkeypatch):
    x, weight = rows("heads of qkv"), torch.randn(65).bfloat16()
    flashinfer.rmsnorm(x, weight, 3e-5)
    made = []
    monkeypatch.setattr(_norm_plans, "rounded_once", lambda **fields: made.append(fields))
    flashinfer.rmsnorm(x, weight * 2, 3e-5)
    assert made == []


@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda x, w: flashinfer.rmsnorm(x.int(), w), UnsupportedError, "rmsnorm.call: input expected .*float32"),
        (lambda x, w: flashinfer.rmsnorm(x, w.to(torch.float8_e4m3fn)), UnsupportedError, "weight expected"),
        (lambda x, w: flashinfer.rmsnorm(x[0], w), ShapeError, r"input expected \[rows, hidden\]"),
        (lambda x, w: flashinfer.rmsnorm(x[None, None], w), ShapeError, r"input expected \[batch, heads, hidden\]"),
        (lambda x, w: flashinfer.rmsnorm(x, w, out=x[:3]), ShapeError, "out expected"),
        (lambda x, w: flashinfer.rmsnorm(x, w[:-1]), ShapeError, "weight"),
        (lambda x, w: flashinfer.rmsnorm(x, None), ArgumentTypeError, "weight expected a tensor"),
        (lambda x, w: flashinfer.gemma_rmsnorm(None, w), ArgumentTypeError, "input expected a tensor"),
        (lambda x, w: flashinfer.fused_add_rmsnorm(x[None], x[None], w), ShapeError, "fused_add_rmsnorm.call: input"),
        (lambda x, w: flashinfer.fused_add_rmsnorm(x, x[:3], w), ShapeError, "residual"),
        (lambda x, w: flashinfer.fused_add_rmsnorm(x, x, w), OpfacadeError, "residual"),
        (lambda x, w: flashinfer.rmsnorm_quant(x, x, w, 1.0), UnsupportedError, "out expected .*float8_e4m3fn"),
        (lambda x, w: flashinfer.rmsnorm_quant(x.to(FP8[0]), x, w, torch.ones(2)), ShapeError, "scale expected a number"),
        (lambda x, w: flashinfer.fused_rmsnorm_silu(x, w, out=x.view(torch.uint8)[:, :65]), UnsupportedError, "out expected"),
        (lambda x, w: flashinfer.fused_rmsnorm_silu(x, w, block_scale=x), UnsupportedError, "block_scale expected None"),
        (lambda x, w: flashinfer.fused_rmsnorm_silu(x, w, out=x[1:]), ShapeError, "out expected"),
        (lambda x, w: flashinfer.layernorm(x, w, w.float()), OpfacadeError, "bias"),
        (lambda x, w: flashinfer.silu_and_mul(x), ShapeError, r"input expected \[..., 2 \* hidden\]"),
        (lambda x, w: flashinfer.silu_and_mul(7), ArgumentTypeError, "input expected a tensor"),
        (lambda x, w: flashinfer.gelu_and_mul(x[:, 1:], x), ShapeError, "out expected"),
        (lambda x, w: flashinfer.gelu_and_mul(x[:, 1:].int()), UnsupportedError, "input expected"),
    ],
)
def test_refusals_name_the_argument_and_nothing_is_written(call, kind, match):
    x, weight = rows("rows"), torch.randn(65).bfloat16()
    before = x.clone()
    with pytest.raises(kind, match=match):
        call(x, weight)
    assert torch.equal(x, before)


@pytest.mark.parametrize("shape", [(66,), (5, 66), (3, 5, 66), (2, 3, 1, 66), (0, 66)])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gated_activations_of_any_rank(name, shape):
    x = torch.randn(shape).bfloat16()
    want = ACTIVATIONS[name](x[..., :33].double()) * x[..., 33:].double()
    got = getattr(flashinfer, name)(x)
    assert got.shape == want.shape
    torch.testing.assert_close(got.double(), want, rtol=2**-8, atol=1e-7)
    out = torch.empty(*shape[:-1], 70).bfloat16()[..., 1:34].fill_(float("nan"))
    assert getattr(flashinfer.activation, name)(x, out, enable_pdl=False) is out
    same_bits(out, got)


def test_an_activation_of_rows_without_a_common_stride():
    whole = torch.randn(3, 4, 5, 66).half()
    x = whole.transpose(0, 2)
    want = flashinfer.silu_and_mul(x.contiguous())
    same_bits(flashinfer.silu_and_mul(x), want)
    out = torch.full((3, 4, 5, 33), float("nan")).half().transpose(0, 2)
    same_bits(flashinfer.silu_and_mul(x, out), want)


@pytest.mark.parametrize("apart", [False, True])
def test_an_activation_over_its_own_gates(apart):
    whole = torch.randn(4, 6, 66).half()
    x = whole.transpose(0, 1) if apart else whole
    ups, want = x[..., 33:].clone(), flashinfer.silu_and_mul(x)
    out = x[..., :33]
    assert flashinfer.silu_and_mul(x, out) is out
    same_bits(x[..., :33], want)
    assert torch.equal(x[..., 33:], ups)


def test_scales_of_groups_in_each_layout():
    x = torch.randn(7, 96).bfloat16()
    x[3, :32] = 0
    groups = x.view(7, 3, 32).float()
    want = groups.abs().amax(-1).clamp(min=1e-10) / 448
    quotients = saturated((groups / want[..., None]).view(7, 96), torch.float8_e4m3fn)
    for given, stride in (
        ({}, (3, 1)),
        ({"column_major_scales": True}, (1, 7)),
        ({"column_major_scales": True, "scale_tma_aligned": True}, (1, 8)),
    ):
        q, scale = flashinfer.quantization.per_token_group_quant_8bit(x, 32, **given)
        assert scale.stride() == stride
        torch.testing.assert_close(scale, want, rtol=1e-6, atol=0)
        torch.testing.assert_close(q.float(), quotients.float(), rtol=2**-3, atol=0)
    _, powers = flashinfer.quantization.per_token_group_quant_8bit(x, 32, column_major_scales=True, scale_ue8m0=True)
    assert powers.dtype == torch.float32
    assert torch.equal(powers, torch.exp2(torch.ceil(torch.log2(want))))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e5m2])
def test_groups_of_any_rank_and_type(dtype):
    x = torch.randn(2, 3, 64)
    q, scale = flashinfer.quantization.per_token_group_quant_8bit(x, 16, eps=0.5, dst_dtype=dtype)
    assert (q.shape, scale.shape, q.dtype) == (x.shape, (2, 3, 4), dtype)
    largest = 127 if dtype == torch.int8 else torch.finfo(dtype).max
    torch.testing.assert_close(scale, x.view(2, 3, 4, 16).abs().amax(-1).clamp(min=0.5) / largest, rtol=1e-6, atol=0)
    step = scale[..., None] * (0.51 if dtype == torch.int8 else largest / 8)
    assert ((q.float().view(2, 3, 4, 16) * scale[..., None] - x.view(2, 3, 4, 16)).abs() <= step).all()


@pytest.mark.parametrize("column_major_scales", [False, True])
def test_no_rows_have_no_scales(column_major_scales):
    x = torch.empty(0, 64)
    q, scale = flashinfer.quantization.per_token_group_quant_8bit(x, 16, column_major_scales=column_major_scales)
    assert (q.shape, scale.shape) == (x.shape, (0, 4))


@pytest.mark.parametrize(
    ("given", "kind", "match"),
    [
        ({"dst_dtype": torch.float16}, UnsupportedError, "dst_dtype"),
        ({"scale_tma_aligned": True}, ArgumentError, "scale_tma_aligned"),
        ({"backend": "triton"}, UnsupportedError, "backend"),
        ({"group_size": 7}, OpfacadeError, "group"),
    ],
)
def test_refusals_of_groups(given, kind, match):
    with pytest.raises(kind, match=match):
        flashinfer.quantization.per_token_group_quant_8bit(torch.randn(3, 64), **{"group_size": 16, **given})
    with pytest.raises(UnsupportedError, match=r"column_major_scales expected False for an x that is not .*, got True"):
        flashinfer.quantization.per_token_group_quant_8bit(torch.randn(2, 3, 64), 16, column_major_scales=True)
