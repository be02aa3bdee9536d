"""Times of all tiles: which tiles exist for a product, and that a plan uses the requested tile."""

from bench.matmul_tiles import plan_with, problems, tiles_of
from opfacade import Target
from opfacade.backends.cuda import matmul
from opfacade.backends.cuda.matmul.tiles import TILES, Tile
from opfacade.plans.matmul import MatmulDescriptor

SM_90A = Target.parse("sm_90a")


def test_products_have_several_tiles_that_fit():
    for problem in problems():
        found = tiles_of(problem.descriptor)
        assert len(found) > 1, problem.name
        assert all(tile.columns <= 128 for tile in found) or problem.kind == "bf16"


def test_the_tile_that_the_model_chooses_is_among_them():
    for problem in problems():
        shape = matmul._shape(problem.descriptor, SM_90A)
        assert shape.tile in tiles_of(problem.descriptor) or shape.tile.split > 1, problem.name


def test_a_plan_has_the_tile_that_it_is_given():
    d = MatmulDescriptor(total_num_rows=128, n=4096, k=4096, dtype="bf16")
    skus = {plan_with(d, tile, SM_90A).sku.id for tile in TILES}
    assert len(skus) == len(TILES)
    assert "tile_columns=64" in plan_with(d, Tile(64, 64, 2), SM_90A).sku.id
