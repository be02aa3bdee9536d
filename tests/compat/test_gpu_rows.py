"""FlashInfer's norms, activations, rotations, groups and slots on a GPU, with kernels only, against the reference."""

import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade import Preference
from opfacade.compat import preferring

pytestmark = pytest.mark.gpu
E4M3 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def _kernels_alone():
    torch.manual_seed(37)
    with preferring(Preference(backend="cuda")):
        yield


def both(call, *tensors):
    """Pairs of tensors, of the GPU and of the CPU: the results of a call, then its arguments after the call."""
    moved = [x.cuda() for x in tensors]
    found = (call(*moved), moved)
    with preferring(None):
        wanted = (call(*tensors), tensors)
    return zip(flat(found), flat(wanted), strict=True)


def flat(found):
    if isinstance(found, torch.Tensor):
        return [found]
    return [x for part in found or () for x in flat(part)]


def near(call, *tensors, apart=0.01):
    """Few elements differ from the reference by one unit in the last place, because the kernel uses f32 where the reference
    uses f64.
    """
    for got, want in both(call, *tensors):
        assert got.dtype == want.dtype
        if not want.is_floating_point():
            continue
        got, step = got.cpu(), 0.26 if want.element_size() == 1 else 2 * torch.finfo(want.dtype).eps
        torch.testing.assert_close(got.float(), want.float(), rtol=step, atol=1e-6)
        assert want.numel() == 0 or (got.float() != want.float()).float().mean() <= apart


def heads(rows=67, dim=128):
    """q and k as views of one tensor of rows."""
    whole = torch.randn(rows, 12, dim).bfloat16()
    return whole[:, :8], whole[:, 8:10]


@pytest.mark.parametrize("hidden", [65, 4096])
def test_norms_of_rows(hidden):
    x, residual, weight = (
        torch.randn(67, 2 * hidden).bfloat16(),
        torch.randn(67, hidden).bfloat16(),
        torch.randn(hidden).bfloat16(),
    )
    near(lambda x, w: flashinfer.rmsnorm(x[:, :hidden], w), x, weight)
    near(lambda x, w: flashinfer.gemma_rmsnorm(x[:, :hidden], w, out=x[:, hidden:]), x, weight)
    near(lambda x, r, w: flashinfer.fused_add_rmsnorm(x[:, :hidden], r, w), x, residual, weight)
    near(lambda x, w: flashinfer.layernorm(x[:, :hidden], w, w), x, weight.float())
    out = torch.zeros(67, hidden, dtype=torch.uint8).view(E4M3)
    near(lambda o, x, r, w: flashinfer.fused_add_rmsnorm_quant(o, x[:, :hidden], r, w, 0.5), out, x, residual, weight)


def test_norms_of_heads_in_place():
    whole, weight = torch.randn(67, 12, 128).bfloat16(), torch.randn(128).bfloat16()
    near(lambda x, w: flashinfer.rmsnorm(x[:, :8], w, out=x[:, :8]), whole, weight)
    near(lambda x, w: flashinfer.gemma_rmsnorm(x[:, 8:10], w), whole, weight)


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"])
def test_activations(name):
    near(getattr(flashinfer, name), torch.randn(3, 67, 2 * 1056).half())


@pytest.mark.parametrize("interleave", [False, True])
def test_rotations(interleave):
    (q, k), positions, cache = heads(), torch.randint(1 << 20, (67,)), torch.randn(500, 64)
    indptr, offsets = torch.tensor([0, 40, 66], dtype=torch.int32), torch.tensor([9, 100_000], dtype=torch.int32)
    near(lambda q, k, at: flashinfer.apply_llama31_rope_pos_ids(q, k, at, 64, interleave), q, k, positions)
    near(
        lambda q, k, *at: flashinfer.apply_rope_inplace(q, k, *at, interleave=interleave), q.clone(), k.clone(), indptr, offsets
    )
    q, k = q.reshape(67, -1), k.reshape(67, -1)
    for got, want in both(
        lambda at, q, k, c: flashinfer.apply_rope_with_cos_sin_cache_inplace(at, q, k, 128, c, not interleave),
        *(positions % 500, q, k, cache),
    ):
        assert torch.equal(got.cpu(), want)


def test_rotations_into_fp8_pages():
    (q, k), (q_nope, k_nope), (_, v) = heads(dim=64), heads(dim=64), heads()
    cache, at = torch.randn(500, 64), torch.randint(500, (67,))
    pools = [torch.zeros(6, 16, 2, 128, dtype=torch.uint8).view(E4M3) for _ in range(2)]
    tables = torch.tensor([5, 1, 0, 2, 3]), torch.tensor([0, 2, 5])
    rows = torch.tensor([0] * 30 + [1] * 36 + [-1]), torch.cat([torch.arange(30), torch.arange(5, 41), torch.zeros(1)]).long()

    def call(q, k, q_nope, k_nope, v, cache, at, k_pool, v_pool, *places):
        name = flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache
        return name(q, k, q_nope, k_nope, v, cache, at, (k_pool, v_pool), *places, quant_scale_q=4.0)

    near(call, q, k, q_nope, k_nope, v, cache, at, *pools, *tables, *rows)


def test_groups_and_slots():
    x = torch.randn(67, 512).bfloat16()
    near(lambda x: flashinfer.quantization.per_token_group_quant_8bit(x, 128, column_major_scales=True), x)
    scores, lengths, table = torch.randn(9, 3000), torch.randint(1, 3000, (9,)).int(), torch.randint(99, (9, 3000)).int()
    for tie_break in (0, 2):
        call = lambda *given: flashinfer.top_k_page_table_transform(*given, 256, tie_break=tie_break)  # noqa: E731, B023
        for got, want in both(call, scores, table, lengths):
            assert torch.equal(got.cpu(), want)


def test_a_layer_in_a_graph_follows_its_inputs():
    x, residual, positions = (
        torch.randn(33, 1536).bfloat16().cuda(),
        torch.randn(33, 1536).bfloat16().cuda(),
        torch.arange(33).cuda(),
    )
    weight, head_weight = torch.randn(1536).bfloat16().cuda(), torch.randn(128).bfloat16().cuda()

    def layer():
        flashinfer.fused_add_rmsnorm(x, residual, weight)
        q, k = x.view(33, 12, 128)[:, :8], x.view(33, 12, 128)[:, 8:10]
        flashinfer.rmsnorm(q, head_weight, out=q)
        flashinfer.apply_rope_pos_ids_inplace(q, k, positions)
        return flashinfer.silu_and_mul(x)

    before = x.clone(), residual.clone()
    layer()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer()
    positions += 1000
    x.copy_(before[0])
    residual.copy_(before[1])
    graph.replay()
    found = captured.clone(), x.clone(), residual.clone()
    x.copy_(before[0])
    residual.copy_(before[1])
    for got, want in zip(found, (layer(), x, residual), strict=True):
        assert torch.equal(got, want)
