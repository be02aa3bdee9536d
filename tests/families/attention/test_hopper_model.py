"""The layouts that Hopper's kernels assume: the models agree with each other on the CPU and with the hardware on a GPU."""

import pytest
import torch

from tests.families.attention import hopper_model as model

BOX = 16


def numbered(rows, columns):
    return torch.arange(rows * columns, dtype=torch.float64).view(rows, columns)


def test_the_panel_layout_is_the_layout_that_tma_writes():
    matrix = numbered(BOX, 64)
    assert torch.equal(model.into_panels(matrix), model.box_in_shared(matrix[None, None], 0, 0, 0, 0, BOX))


@pytest.mark.parametrize("rows", [64, 128])
def test_a_k_major_descriptor_reads_rows_in_order(rows):
    matrix = numbered(rows, 128)
    shared = model.into_panels(matrix)
    for k in range(8):
        at = model.descriptor_at(k // 4 * rows * 128, 0, k % 4 * 32)
        assert torch.equal(model.read_rows(shared, at, rows), matrix[:, k * 16 : k * 16 + 16])


@pytest.mark.parametrize("columns", [64, 128, 256])
def test_a_transposed_descriptor_reads_k_indices_in_order(columns):
    matrix = numbered(64, columns)
    shared = model.into_panels(matrix)
    for k in range(4):
        at = model.descriptor_at(0, 64 * 128, k * 2048)
        assert torch.equal(model.read_transposed(shared, at, columns), matrix[k * 16 : k * 16 + 16])


def test_a_wrong_stride_reads_another_matrix():
    """Negative control: eight rows must be 1024 bytes apart."""
    matrix = numbered(64, 64)
    at = model.descriptor_at(0, 0, 0) | {"stride": 512}
    assert not torch.equal(model.read_rows(model.into_panels(matrix), at, 64), matrix[:, :16])


def test_packed_accumulators_are_the_a_operand_of_the_next_product():
    for thread in range(128):
        for step in range(8):
            for register in range(4):
                first = (2 * step + register // 2) * 4 + register % 2 * 2
                pair = tuple(model.accumulator_place(thread, first + i) for i in range(2))
                wanted = tuple((row, column + step * 16) for row, column in model.operand_places(thread, register))
                assert pair == wanted


def test_packed_fp8_accumulators_are_the_a_operand_of_the_next_product_up_to_the_order_of_keys():
    """Register 2c + h of a step of 32 keys packs the scores of four keys; the transposed values use the same order of keys."""
    for thread in range(128):
        for register in range(16):
            step, c, h = register // 4, register % 4 // 2, register % 2
            scores = [model.accumulator_place(thread, register // 2 * 8 + j // 2 * 4 + h * 2 + j % 2) for j in range(4)]
            g, t = thread % 32 // 4, thread % 4
            assert {row for row, _ in scores} == {thread // 32 * 16 + g + 8 * h}
            places = [step * 32 + 16 * c + 4 * t + j for j in range(4)]
            assert [model.transposed_place(key) for _, key in scores] == places


def test_bytes_transposed_in_pairs_are_at_the_positions_of_the_model():
    tile = torch.arange(128 * 128).view(128, 128)
    shared = model.transpose_bytes(tile)
    rows = [model.transposed_row(column) for column in range(128)]
    assert sorted(rows) == list(range(128))
    for key in range(128):
        assert torch.equal(shared[rows, model.transposed_place(key)], tile[key])


def test_a_thread_has_four_adjacent_columns_in_sixteen_transposed_ones():
    """The order is that of the stores in prefill_sm90/output.cuh: the first element of both blocks, then the second."""
    columns = {model.transposed_row(column): column for column in range(128)}
    for thread in range(128):
        for first in range(0, 64, 8):
            places = [model.accumulator_place(thread, first + i) for i in (0, 4, 1, 5)]
            mine = [columns[column] for _, column in places]
            assert mine == list(range(first * 2 + thread % 4 * 4, first * 2 + thread % 4 * 4 + 4))


def test_accumulators_cover_each_element_of_a_tile_once():
    places = [model.accumulator_place(t, i) for t in range(128) for i in range(64)]
    assert sorted(places) == [(r, c) for r in range(64) for c in range(128)]


@pytest.fixture(scope="module")
def probes():
    from opfacade import jit
    from opfacade.jit.spec import JitSpec

    return jit.load(JitSpec.of("hopper", "probes/hopper", "sm_90a", ("-DOPF_WAIT_LIMIT=10000000",)))


def close(got, want):
    assert bool(got.isfinite().all())
    assert float((got.double().cpu() - want).norm() / want.norm()) < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("columns", [64, 96, 128, 256])
def test_wgmma_with_both_operands_in_shared_memory(probes, dtype, columns):
    a, b = torch.randn(64, 128, dtype=dtype), torch.randn(columns, 128, dtype=dtype)
    c = torch.full((64, columns), float("nan"), device="cuda")
    name = "f16" if dtype == torch.float16 else "bf16"
    getattr(probes, f"ss_{name}_{columns}")(a.cuda(), b.cuda(), c)
    close(c, a.double() @ b.double().T)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("columns", [64, 128, 256])
def test_wgmma_with_a_in_registers(probes, dtype, columns):
    a, b = torch.randn(64, 64, dtype=dtype), torch.randn(64, columns, dtype=dtype)
    c = torch.full((64, columns), float("nan"), device="cuda")
    name = "f16" if dtype == torch.float16 else "bf16"
    getattr(probes, f"rs_{name}_{columns}")(a.cuda(), b.cuda(), c)
    close(c, 1 + a.double() @ b.double())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_two_wgmma_steps_with_a_in_registers(probes, dtype):
    a, b = torch.randn(64, 64, dtype=dtype), torch.randn(64, 64, dtype=dtype)
    c = torch.full((64, 64), float("nan"), device="cuda")
    getattr(probes, f"rs_two_{'f16' if dtype == torch.float16 else 'bf16'}_64")(a.cuda(), b.cuda(), c)
    close(c, 1 + a[:, :32].double() @ b[:32].double())


def e4m3(*shape):
    return torch.randn(*shape).to(torch.float8_e4m3fn)


def cut_sums(got, want, size):
    """Each of the four steps of 32 products may differ by 34 units of 2^-13 of its largest addend, which is at most `size`."""
    assert bool(got.isfinite().all())
    assert bool(((got.double().cpu() - want).abs() <= 4 * 34 * 2.0**-13 * size).all())


@pytest.mark.gpu
def test_fp8_wgmma_with_both_operands_in_shared_memory(probes):
    a, b = e4m3(64, 128), e4m3(128, 128)
    c = torch.full((64, 128), float("nan"), device="cuda")
    probes.ss_e4m3_128(a.cuda(), b.cuda(), c)
    cut_sums(c, a.double() @ b.double().T, a.double().abs() @ b.double().abs().T)


@pytest.mark.gpu
def test_fp8_wgmma_of_weights_and_transposed_values(probes):
    a, b = e4m3(64, 128), e4m3(128, 128)
    c = torch.full((64, 128), float("nan"), device="cuda")
    probes.rs_e4m3_128(a.cuda(), b.cuda(), c)
    cut_sums(c, a.double() @ b.double(), a.double().abs() @ b.double().abs())


@pytest.mark.gpu
def test_fp8_wgmma_truncates_sums_as_the_model_does(probes):
    """The sum of 2^8 and 31 products of 2^-9, each of which is far below 2^-13 of 2^8."""
    a, b = torch.zeros(64, 128).to(torch.float8_e4m3fn), torch.zeros(128, 128).to(torch.float8_e4m3fn)
    a[:, 0], b[:, 0] = 16.0, 16.0
    a[:, 1:32], b[:, 1:32] = 2.0**-3, 2.0**-6
    c = torch.full((64, 128), float("nan"), device="cuda")
    probes.ss_e4m3_128(a.cuda(), b.cuda(), c)
    assert bool((c == 256.0).all())


@pytest.mark.gpu
@pytest.mark.parametrize("at", [(0, 0, 0, 0), (64, 16, 1, 2), (64, 24, 2, 1), (192, 3, 1, 0)])
@pytest.mark.parametrize("order", ["HND", "NHD"])
def test_tma_stores_boxes_as_the_model_does(probes, at, order):
    pool = torch.randn(3, 3, 30, 256).bfloat16()
    gpu = pool.cuda() if order == "HND" else pool.transpose(1, 2).contiguous().cuda().transpose(1, 2)
    c = torch.full((5, BOX * 64), float("nan"), dtype=torch.bfloat16, device="cuda")
    probes.tma(gpu, c, *at)
    want = model.box_in_shared(pool, *at, BOX)
    for phase in range(5):
        assert torch.equal(c[phase].cpu(), want)


@pytest.mark.gpu
def test_a_ring_delivers_every_step_to_both_consumers(probes):
    c = torch.full((2, 23, 128), -1, dtype=torch.int32, device="cuda")
    probes.ring(c)
    want = torch.arange(23)[:, None] * 1000 + torch.arange(127, -1, -1)
    assert torch.equal(c.cpu(), want.int().expand(2, -1, -1))
