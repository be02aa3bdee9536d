"""The parts of kernels/tile, tested alone in small kernels (tile.cc). The inputs are small integers, so products are exact."""

import pytest
import torch

from tests import emulator
from tests.emulator.parts import library, numbers
from tests.families.attention import hopper_model

pytestmark = emulator.needed


def drawn(*shape, seed=0, high=4):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed)).float()


def found(name, count, a=None, b=None):
    return numbers((library("tile"), f"run_{name}"), count, a, b, dtype=torch.float32)


def test_a_product_of_rows_in_panels():
    a, b = drawn(64, 128), drawn(64, 128, seed=1)
    assert torch.equal(found("rows", 64 * 64, a, b).view(64, 64), a @ b.T)


def test_a_product_with_elements_of_k_in_groups_of_lines():
    a, b = drawn(64, 64), drawn(64, 128, seed=1)
    assert torch.equal(found("groups", 64 * 128, a, b).view(64, 128), a @ b)


@pytest.mark.parametrize("chunks", [4, 8, 16])
def test_products_of_swizzled_rows(chunks):
    """The lanes have s = a * b^T, of which `out` contains the first eight columns; s is then the A operand of s * b."""
    a, b = drawn(16, 8 * chunks, high=2), drawn(16, 8 * chunks, seed=1, high=2)
    out = found(f"matrices_{chunks}", 256 + 128 * chunks, a, b)
    assert torch.equal(out[:256].view(16, 16), a @ b.T)
    assert torch.equal(out[256:].view(16, -1), a @ b.T @ b)


def test_addresses_of_swizzled_chunks():
    """Each chunk of a row has its own address, the same chunk of eight rows is in different groups of banks, and a panel row
    has eight chunks."""
    four, eight, sixteen, panel = found("addresses", 2048).int().view(4, 64, 8)
    for places, width in ((four[:, :4], 4), (eight, 8), (sixteen, 16)):
        rows = torch.arange(64, dtype=torch.int32)[:, None] * width * 16
        assert bool(((places >= rows) & (places < rows + width * 16)).all())
        assert len(set(places.flatten().tolist())) == places.numel()
        for chunk in range(places.shape[1]):
            assert len(set((places[:8, chunk] // 16 % 8).tolist())) == 8
    wanted = [[hopper_model.panel_address(row, chunk) for chunk in range(8)] for row in range(64)]
    assert panel.tolist() == wanted == eight.tolist()


def test_the_thread_and_the_element_of_a_column():
    *pairs, leads = found("holders", 160)[:128].view(64, 2).int().tolist(), found("holders", 160)[128:]
    for thread in range(4):
        for i in range(16):
            column = hopper_model.accumulator_place(thread, i // 2 * 4 + i % 2)[1]
            assert pairs[0][column] == [thread, i]
    assert leads.tolist() == [float(lane % 4 == 0) for lane in range(32)]


def test_threads_of_a_quad_exchange_columns():
    four = found("exchanges", 288)[:160].view(32, 5)
    assert torch.equal(four[:, :4], four[:, 4:] + torch.arange(4.0))
    assert sorted(four[:4, 4].tolist()) == [0, 4, 8, 12]


def test_words_of_a_quad_are_transposed():
    words = found("exchanges", 288)[160:].view(8, 4, 4)
    assert torch.equal(words, torch.arange(16.0).view(4, 4).T.expand(8, 4, 4))


def test_lanes_that_share_a_column_are_reduced():
    x = drawn(32, high=100)
    out, lanes = found("columns", 64, x).view(2, 8, 4), x.view(8, 4)
    assert torch.equal(out[0], lanes.sum(0).expand(8, 4))
    assert torch.equal(out[1], lanes.amax(0).expand(8, 4))


def test_bytes_of_a_tile_are_transposed():
    x = drawn(128, 128, high=256)
    assert torch.equal(found("bytes", 128 * 128, x).view(128, 128), hopper_model.transpose_bytes(x))
