"""The tile of a product depends on its sizes and the number of SMs; the segments of k depend only on n and k."""

import pytest

from opfacade import Target
from opfacade.backends.cuda.matmul.segments import segments_of
from opfacade.backends.cuda.matmul.tiles import HALVES, TILES, Sizes, Tile, _fitting, nanoseconds, tile_of
from opfacade.plans.matmul import MatmulDescriptor

SM_90A = Target.parse("sm_90a")


def product(rows, n, k, **more):
    return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="bf16", **more)


@pytest.mark.parametrize(
    ("n", "k", "wanted"),
    [
        (96, 7168, (8, 896)),
        (256, 7168, (8, 896)),
        (512, 4096, (8, 512)),
        (513, 4096, None),
        (2112, 7168, None),
        (96, 2100, (4, 640)),
        (96, 2047, None),
        (72, 4224, (7, 640)),
    ],
)
def test_segments_are_by_n_and_k_alone(n, k, wanted):
    for rows in (0, 1, 64, 8192):
        assert segments_of(product(rows, n, k)) == wanted
        assert segments_of(product(rows, n, k, order="k")) is None
    if wanted:
        assert wanted[0] * wanted[1] >= k > (wanted[0] - 1) * wanted[1]


@pytest.mark.parametrize("rows", [1, 64, 200, 4096])
def test_clusters_of_segments_run_at_once(rows):
    """A limit of SMs applies to these too."""
    for sms in (8, 32, 132):
        tile = tile_of(Sizes(rows, 96, 7168, 1, 32, 2, 8), sms)
        assert tile.split in (1, 8)
        assert tile.split == 1 or -(-rows // 64) * 3 * 8 <= 0.8 * sms
        assert tile.columns <= 128
    assert tile_of(Sizes(1, 96, 7168, 1, 32, 2, 8), 132).split == 8


def test_ctas_of_a_cluster_have_two_segments_where_clusters_of_all_would_not_run_at_once():
    assert tile_of(Sizes(256, 256, 7168, 1, 32, 2, 8), 132) == Tile(64, 64, 2, split=4)
    assert tile_of(Sizes(256, 256, 7168, 1, 32, 2, 7), 132) == Tile(64, 64, 2, split=4)  # the last has one
    assert tile_of(Sizes(256, 256, 7168, 1, 32, 2, 8), 70).split == 1  # 64 CTAs are more than 0.9 of the SMs


def test_few_rows_read_much_of_each_row_of_the_weight():
    for n in (10240, 28672, 57344, 128256):
        for rows in (1, 64):
            assert tile_of(Sizes(rows, n, 8192, 1), 132).panels == 2


def test_a_weight_whose_columns_lie_along_panels_has_whole_panels():
    assert tile_of(Sizes(1, 4096, 4096, 1, 64), 132).columns == 64


def test_one_sm_has_no_cluster():
    assert {tile.cluster for tile in _fitting(Sizes(4096, 4096, 4096, 1), 1)} == {1}
    assert {tile.cluster for tile in _fitting(Sizes(4096, 4096, 4096, 1), 2)} == {1, 2}


@pytest.mark.parametrize(("rows", "n", "k"), [(1, 4096, 4096), (64, 4096, 4096), (4096, 4096, 4096), (1, 0, 0), (8192, 96, 64)])
def test_few_rows_have_tiles_of_few_rows_and_many_the_largest(rows, n, k):
    tile = tile_of(Sizes(rows, n, k, 1), 132)
    assert tile in TILES
    assert tile.rows == 64 or rows > 64
    if rows == 4096:
        assert tile == Tile(128, 256, 1)
    if (rows, n) == (1, 4096):
        assert tile.columns == 32  # as many CTAs as there are SMs


def test_sums_of_segments_have_half_the_columns():
    """The sum of a segment and of those before it are both in registers."""
    sizes = Sizes(8192, 1056, 4096, 1)
    assert tile_of(sizes, 132).columns > 128
    assert tile_of(sizes._replace(segments=4), 132).columns == 128


@pytest.mark.parametrize(
    ("rows", "n", "k", "ctas"), [(256, 4096, 4096, 64), (256, 6144, 4096, 96), (256, 10240, 8192, 108), (256, 2112, 7168, 66)]
)
def test_256_rows_have_tiles_for_half_of_the_sms_and_more(rows, n, k, ctas):
    """With tiles of 128 x 256 the counts would be 32, 48, 80 and 18."""
    tile = tile_of(Sizes(rows, n, k, 1), 132)
    assert -(-rows // (tile.rows * tile.cluster)) * tile.cluster * -(-n // tile.columns) >= ctas


def test_a_last_wave_that_is_nearly_empty_is_avoided():
    """With 2112 columns, tiles of 256 need three waves for 2.2 waves of work, and tiles of 192 x 192 two waves of 1.1 times the
    work.
    """
    sizes = Sizes(4096, 2112, 7168, 1)
    tile = tile_of(sizes, 132)
    assert tile == Tile(192, 192, 1)
    assert nanoseconds(tile, sizes, 132) < 0.9 * nanoseconds(Tile(128, 256, 1), sizes, 132)
    assert tile_of(Sizes(4096, 1040, 4096, 1), 132) == Tile(192, 192, 1)  # one wave of 132 tiles
    assert tile_of(Sizes(4096, 2112, 7168, 1, 64), 132).rows == 128  # a weight whose columns are contiguous along panels
    assert tile_of(Sizes(4096, 6144, 4096, 1), 132) == Tile(128, 256, 1)  # 5.8 of 6 waves
    assert tile_of(Sizes(1024, 10240, 8192, 1), 132) == Tile(128, 160, 1)  # 3.9 waves
    assert tile_of(Sizes(1024, 10240, 8192, 1, size=1), 132) == Tile(128, 128, 1)  # 4.8 waves of half the work, instead of 2.4


def test_a_part_of_a_weight_along_panels_is_whole_panels():
    """Each CTA of a cluster loads its part of the columns."""
    for rows in (64, 256, 1000, 4096):
        for n in (192, 2112, 4096, 6144):
            tile = tile_of(Sizes(rows, n, 7168, 1, 64), 132)
            assert tile.columns // tile.cluster % 64 == 0


def test_tiles_fit_shared_memory():
    """In addition to the rows that warps stage before they store them."""
    for tile in (*TILES, *HALVES):
        assert tile.stages >= 2
        boxes = tile.stages * (tile.stage + 16) + 1024 + tile.rows * (128 if tile.columns % 64 == 0 else 64)
        assert boxes <= SM_90A.max_shared_memory


@pytest.mark.parametrize("rest", [(32, 64, 4), (4096, 4096, 1), (28672, 4096, 1), (4096, 7168, 1, 32, 1, 1, True)])
def test_a_tile_is_the_first_of_the_fastest_whatever_came_before(rest):
    """Rows in any order: the search begins at the last result."""
    for rows in (20000, 1, 64, 129, 4096, 300, 65, 192, 8191, 2, 7000, 1000):
        sizes = Sizes(rows, *rest)
        tiles = [*_fitting(sizes, 132), *(HALVES if sizes.size == 2 else ())]
        assert tile_of(sizes, 132) == min(tiles, key=lambda tile: nanoseconds(tile, sizes, 132))
