"""Rows of out that are not aligned: every element is written once, and nothing else is written."""

from unittest.mock import patch

import pytest
import torch

from opfacade.backends.cuda import matmul as backend
from opfacade.backends.cuda.matmul.tiles import Tile
from opfacade.core.descriptor import forget_specializations
from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor
from opfacade.testing import inputs
from tests import emulator


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield
    forget_specializations()


def outputs(n, tile, shapes, rows=11):
    """out of one product in each memory layout (elements between rows, offset of the first), with the content around it."""
    problem = MatmulDescriptor(total_num_rows=rows, n=n, k=16, dtype="bf16", bias=True, activation="relu")
    args = inputs.make_args(problem, 3)
    with patch.object(backend, "tile_of", lambda *_: tile):
        forget_specializations()
        for pitch, first in shapes:
            memory = torch.full((12 * pitch + 64,), -7.0, dtype=torch.bfloat16)
            out = memory.as_strided((rows, n), (pitch, 1), first)
            emulator.subject(problem).run(MatmulArgs(x=args.x, weight=args.weight, bias=args.bias, out=out))
            kept = out.clone()
            out.fill_(-7.0)
            yield kept, memory


@emulator.needed
@pytest.mark.parametrize("tile", [Tile(64, 32, 2), Tile(64, 128, 2)], ids=str)
@pytest.mark.parametrize("n", [1, 3, 7, 8, 33, 65, 127, 130])
def test_rows_anywhere_have_the_elements_of_aligned_rows(n, tile):
    """An activation is never negative, so unwritten elements show."""
    wide = -(-n // 8) * 8
    shapes = [(wide, 8), *((wide + more, first) for more, first in ((0, 3), (1, 8), (3, 5), (6, 2), (8, 7)))]
    found = list(outputs(n, tile, shapes))
    for kept, memory in found:
        assert bool((kept >= 0).all())
        assert torch.equal(kept, found[0][0])
        assert bool((memory == -7.0).all())


@emulator.needed
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("n", [5, 37])
def test_one_row_and_two_rows_have_the_elements_of_aligned_rows(n, rows):
    """The stride of a single row does not matter, the stride of two rows does."""
    found = list(outputs(n, Tile(64, 32, 2), [(40, 8), (n, 8), (n, 3), (n + 1, 16)], rows))
    for kept, memory in found:
        assert bool((kept >= 0).all())
        assert torch.equal(kept, found[0][0])
        assert bool((memory == -7.0).all())
