"""The cost of batch invariance: which shapes allow a free choice, and the content of a row and of the summary."""

from bench.matmul_invariance import plan_of, problems, row_of, shapes, summary
from opfacade import Target
from opfacade.backends.cuda import matmul
from opfacade.backends.cuda.matmul.kernel import Shape
from opfacade.backends.cuda.matmul.tiles import Tile

SM_90A = Target.parse("sm_90a")


def test_a_free_choice_has_tiles_with_one_chain_with_segments_and_with_clusters():
    for problem in problems():
        found, d = shapes(problem.descriptor), problem.descriptor
        assert any(one.segments is None for one in found)
        assert all(one.tile.columns <= 128 for one in found if one.segments is not None)
        if d.n <= 512 and d.total_num_rows <= 64:
            assert {one.tile.split for one in found} >= {1, 4, 8}
        own = matmul._shape(d, SM_90A)
        assert own in found or own.tile.split > 1, problem.name


def test_a_plan_has_the_shape_that_it_is_given():
    problem = next(iter(problems())).descriptor
    skus = {plan_of(problem, shape, SM_90A).sku.id for shape in shapes(problem)}
    assert len(skus) == len(shapes(problem))


def test_a_share_is_the_time_of_the_free_choice_over_that_of_the_chosen_one():
    problem = next(iter(problems()))
    some = [Shape(Tile(64, 32, 2), None), Shape(Tile(64, 64, 2), None)]
    row = row_of(problem, some, some[0], {0: 10.0, 1: 9.0})
    assert (row["us"], row["free_us"], row["share"]) == (10.0, 9.0, 0.9)
    assert row["free"] == [[64, 64, 2, 1, 1, False], None]
    found = summary([row, row | {"share": 1.0}])
    assert (found["products"], found["mean_share"], found["worst_share"], len(found["below"])) == (2, 0.95, 0.9, 1)
