"""FlashInfer's grouped products and its layer of experts against torch in f64, and their refusals."""

import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade.compat.flashinfer import ActivationType
from opfacade.errors import MissingNameError, OpfacadeError

pytestmark = pytest.mark.usefixtures("one_thread")
gemm, E4M3, E5M2 = flashinfer.gemm, torch.float8_e4m3fn, torch.float8_e5m2
NEAR = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10, torch.float32: 1e-5}
LENS = [3, 0, 5, 1]


def drawn(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def near(got, want, dtype=torch.bfloat16, atol=1e-3):
    assert (got.dtype, got.shape) == (dtype, want.shape)
    torch.testing.assert_close(got.double(), want.double(), rtol=NEAR[dtype], atol=atol)


def by_segment(x, weights, lens):
    """weights [segments, n, k]."""
    parts = x.double().split(lens)
    return torch.cat([part @ weight.double().T for part, weight in zip(parts, weights, strict=True)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("column_major", [True, False])
def test_segments_have_weights_of_their_own_or_by_index(dtype, column_major):
    x, weights = drawn(9, 40, dtype=dtype), drawn(4, 24, 40, seed=1, dtype=dtype)
    given = weights if column_major else weights.mT.contiguous()
    segments = flashinfer.SegmentGEMMWrapper(torch.empty(8, dtype=torch.int8))
    lens, want = torch.tensor(LENS), by_segment(x, weights, LENS)
    near(segments.run(x, given, 4, column_major, seg_lens=lens), want, dtype)
    out = torch.empty(9, 24, dtype=dtype)
    assert segments.forward(x, given, 4, column_major, out, seg_indptr=torch.tensor([0, 3, 3, 8, 9])) is out
    near(out, want, dtype)
    chosen = torch.tensor([2, 0, 2, 1])
    got = segments.run(x, given, 4, column_major, seg_lens=lens.int(), weight_indices=chosen)
    near(got, by_segment(x, weights[chosen], LENS), dtype)


def in_blocks(rows, groups, n, k, kind=E4M3):
    """Rows, weights, their scales, and the dequantised numbers."""
    a, b = drawn(*rows, k, dtype=kind), drawn(groups, n, k, seed=1, dtype=kind)
    parts, blocks = -(-k // 128), -(-n // 128)
    of_a, of_b = drawn(*rows, parts, seed=2).float().abs() + 0.1, drawn(groups, blocks, parts, seed=3).float().abs() + 0.1
    x = a.double() * of_a.double().repeat_interleave(128, -1)[..., :k]
    w = b.double() * of_b.double().repeat_interleave(128, -1)[..., :k].repeat_interleave(128, -2)[:, :n]
    return a, b, of_a, of_b, x, w


@pytest.mark.parametrize("kind", [E4M3, E5M2])
@pytest.mark.parametrize(("n", "k"), [(136, 256), (24, 140)])
def test_groups_of_fp8_rows_have_scales_of_rows_and_blocks(kind, n, k):
    a, b, of_a, of_b, x, w = in_blocks((9,), 4, n, k, kind)
    indptr, want = torch.tensor([0, 3, 3, 8, 9], dtype=torch.int32), by_segment(x, w, LENS)
    near(gemm.group_gemm_fp8_nt_groupwise(a, b, of_a, of_b, indptr, scale_major_mode="K"), want, atol=2e-2)
    turned = (of_a.T.contiguous(), of_b.mT.contiguous())
    out = torch.empty(9, n, dtype=torch.float32)
    assert gemm.group_gemm_fp8_nt_groupwise(a, b, *turned, indptr, out=out) is out
    near(out, want, torch.float32, atol=1e-3)


def test_masked_groups_write_their_first_rows_alone():
    a, b, of_a, of_b, x, w = in_blocks((3, 5), 3, 24, 256)
    out, counts = torch.full((3, 5, 24), 7.0).bfloat16(), [2, 0, 5]
    assert gemm.batch_deepgemm_fp8_nt_groupwise(a, b, of_a, of_b, torch.tensor(counts).int(), 2, out=out) is out
    want = torch.full((3, 5, 24), 7.0).double()
    for group, count in enumerate(counts):
        want[group, :count] = x[group, :count] @ w[group].T
    near(out, want, atol=2e-2)


@pytest.mark.parametrize("ids", [[0, 0, 2, 2, -1, 3], [3, -1, 0, 2, 0, 3]])
def test_rows_find_their_group_by_index_in_any_order(ids):
    a, b, of_a, of_b, x, w = in_blocks((6,), 4, 24, 256)
    out = torch.full((6, 24), 7.0).bfloat16()
    assert gemm.group_deepgemm_fp8_nt_groupwise(a, b, of_a, of_b, torch.tensor(ids).int(), out=out) is out
    want = torch.stack(
        [x[row] @ w[group].T if group >= 0 else torch.full((24,), 7.0).double() for row, group in enumerate(ids)]
    )
    near(out, want, atol=2e-2)
    assert gemm.group_deepgemm_fp8_nt_groupwise(a, b, of_a, of_b, torch.tensor(ids)).dtype == torch.bfloat16


FUNCTIONS = {
    ActivationType.Swiglu: torch.nn.functional.silu,
    ActivationType.Geglu: torch.nn.functional.gelu,
    ActivationType.GegluTanh: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    ActivationType.Silu: torch.nn.functional.silu,
    ActivationType.Relu2: lambda x: x.relu().square(),
    ActivationType.Identity: lambda x: x,
}
GATED = (ActivationType.Swiglu, ActivationType.Geglu, ActivationType.GegluTanh)


def test_activations_have_the_numbers_of_flashinfer():
    """A caller may pass a number, and a name that is not served is refused by its name."""
    assert {one.name: one.value for one in ActivationType} == {
        "Gelu": 0, "Relu": 1, "Silu": 2, "Swiglu": 3, "Geglu": 4, "SwigluBias": 5, "Relu2": 6, "SwigluStep": 7, "GegluTanh": 8,
        "Identity": 9, "Situ": 10, "InvalidType": 11,
    }  # fmt: skip


def layer(x, ids, scales, up, down, kind, first=0, up_bias=None, down_bias=None):
    """Row by row, expert by expert, in f64."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row, experts in enumerate(ids.tolist()):
        for slot, expert in enumerate(experts):
            own = expert - first
            if not 0 <= own < len(up):
                continue
            h = up[own].double() @ x[row].double() + (0 if up_bias is None else up_bias[own].double())
            h, gates = (h.chunk(2)) if kind in GATED else (1.0, h)
            h = FUNCTIONS[kind](gates) * h
            h = down[own].double() @ h + (0 if down_bias is None else down_bias[own].double())
            out[row] += float(scales[row, slot]) * h
    return out


def drawn_layer(kind, dtype=torch.bfloat16, experts=5, width=16):
    rows, hidden = 7, 24
    x, ids = drawn(rows, hidden, dtype=dtype), torch.rand(rows, 8, generator=torch.Generator().manual_seed(2))
    up = drawn(experts, (2 if kind in GATED else 1) * width, hidden, seed=3, dtype=dtype) * hidden**-0.5
    down = drawn(experts, hidden, width, seed=4, dtype=dtype) * width**-0.5
    return x, ids[:, :experts].topk(2).indices.int(), drawn(rows, 2, seed=5).float().abs(), up, down


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_layer_of_experts_is_the_sum_over_its_choices(kind):
    x, ids, scales, up, down = drawn_layer(kind)
    got = flashinfer.fused_moe.cutlass_fused_moe(x, ids, scales, up, down, torch.bfloat16, [], activation_type=kind)
    torch.testing.assert_close(got.double(), layer(x, ids, scales, up, down, kind), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_adds_its_own_experts_with_biases_in_f32(rank):
    kind = ActivationType.Swiglu
    x, ids, scales, up, down = drawn_layer(kind, torch.float32, experts=6)
    biases = drawn(6, up.shape[1], seed=6).float(), drawn(6, down.shape[1], seed=7).float()
    own = slice(3 * rank, 3 * rank + 3)
    out = torch.empty_like(x)
    got = flashinfer.cutlass_fused_moe(
        x,
        ids,
        scales,
        up[own],
        down[own],
        torch.float32,
        None,
        biases[0][own],
        biases[1][own],
        ep_size=2,
        ep_rank=rank,
        output=out,
    )
    assert got is out
    want = layer(x, ids, scales, up[own], down[own], kind, 3 * rank, biases[0][own], biases[1][own])
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


X, IDS, SCALES, UP, DOWN = drawn_layer(ActivationType.Swiglu)
A, B, OF_A, OF_B = in_blocks((4,), 2, 24, 128)[:4]
INDPTR = torch.tensor([0, 1, 4]).int()


def moe(**changed):
    given = {"input": X, "token_selected_experts": IDS, "token_final_scales": SCALES, "fc1_expert_weights": UP}
    given |= {"fc2_expert_weights": DOWN, "output_dtype": torch.bfloat16, "quant_scales": None}
    return flashinfer.cutlass_fused_moe(**(given | changed))


def grouped(**changed):
    given = {"a": A, "b": B, "a_scale": OF_A, "b_scale": OF_B, "m_indptr": INDPTR, "scale_major_mode": "K"}
    return gemm.group_gemm_fp8_nt_groupwise(**(given | changed))


# Flags that the adapter refuses.
WITHOUT = (
    "enable_alltoall", "min_latency_mode", "use_deepseek_fp8_block_scale", "use_mxfp8_act_scaling", "use_packed_weights",
    "use_w4_group_scaling", "use_wfp4afp8_humming",
)  # fmt: skip


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: moe(quant_scales=[OF_A]), "quant_scales expected an empty list"),
        (lambda: moe(input_sf=OF_A), "input_sf expected None"),
        (lambda: moe(swiglu_limit=OF_A), "swiglu_limit expected None.*alpha, beta and limit as numbers"),
        *((lambda name=name: moe(**{name: True}), f"{name} expected None or False") for name in WITHOUT),
        (lambda: moe(activation_type=ActivationType.Situ), "activation_type expected one of Swiglu"),
        (lambda: moe(output_dtype=torch.float16), "output_dtype expected torch.bfloat16"),
        (lambda: moe(output=torch.empty(7, 24)), "output expected torch.bfloat16"),
        (lambda: moe(fc1_expert_weights=UP[:, 1:]), "fc1_expert_weights expected as many gates as ups"),
        (lambda: moe(fc2_expert_weights=DOWN[:4]), r"fc2_expert_weights expected \[5, 24, 16\]"),
        (lambda: moe(token_selected_experts=IDS.long()), "token_selected_experts expected torch.int32"),
        (lambda: moe(token_final_scales=SCALES[:, :1]), r"token_final_scales expected \[7, 2\]"),
        (lambda: moe(fc1_expert_biases=torch.zeros(5, 32)), "fc2_expert_biases expected a tensor"),
        (lambda: moe(fc1_expert_weights=UP.half()), "fc1_expert_weights expected torch.bfloat16"),
        (lambda: grouped(a=A.float()), "a expected torch.float8_e4m3fn or torch.float8_e5m2"),
        (lambda: grouped(b=B[:, :, :64]), r"b expected \[groups, n, k\]"),
        (lambda: grouped(a_scale=OF_A[:2]), r"a_scale expected \[4, 1\]"),
        (lambda: grouped(b_scale=OF_B.double()), "b_scale expected torch.float32"),
        (lambda: grouped(m_indptr=INDPTR[:2]), r"m_indptr expected \[3\]"),
        (lambda: grouped(m_indptr=INDPTR.float()), "m_indptr expected torch.int32 or torch.int64"),
        (lambda: grouped(scale_granularity_mnk=(1, 64, 128)), "scale_granularity_mnk expected"),
        (lambda: grouped(scale_major_mode="N"), "scale_major_mode expected 'K' or 'MN'"),
        (lambda: grouped(out_dtype=torch.int8), "out_dtype expected"),
        (lambda: flashinfer.SegmentGEMMWrapper(None).run(X, UP, 5, True), "seg_lens expected a tensor"),
        (lambda: flashinfer.SegmentGEMMWrapper(None).run(X, UP, 4, True, seg_lens=IDS[:4, 0]), "weights expected 4 weights"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_argument(call, words):
    with pytest.raises(OpfacadeError, match=words):
        call()


def test_names_that_are_missing_say_so():
    with pytest.raises(MissingNameError, match="trtllm_fp4_block_scale_moe"):
        _ = flashinfer.fused_moe.trtllm_fp4_block_scale_moe
