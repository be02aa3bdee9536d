"""Faults in grouped products whose rows are on N of wgmma."""

from tests.mutation.mutant import cpu

KERNEL = "tests/families/matmul/test_swapped_kernel.py"
K = "kernels/matmul"
BITS = f"{KERNEL} -k bits_of_rows and chain"


def on_n(name, file, old, new, tests=BITS):
    return cpu(f"products with rows on N: {name}", f"{K}/{file}", old, new, tests)


FAULTS = (
    on_n("a tile with some rows too many for a product has the narrower one", "swapped_reader.cuh", "if (units > 4)",
         "if (units > 5)"),
    on_n("three units of rows have the product of two", "swapped_reader.cuh", "else if (units > 2)", "else if (units > 3)"),
    on_n("two units of rows have the product of one", "swapped_reader.cuh", "else if (units == 2)", "else if (units == 9)"),
    on_n("rows that are not a whole unit do not come", "tiles.cuh", "(tile.end - tile.row + kRowsUnit<C> - 1) / kRowsUnit<C>",
         "(tile.end - tile.row) / kRowsUnit<C>"),
    on_n("every unit has the first rows", "load.cuh", "k, tile.row + unit * kRowsUnit<C>, tile.batch",
         "k, tile.row, tile.batch"),
    on_n("units lie upon each other", "load.cuh", "x + unit * kRowsUnit<C> * 128, p.x_map", "x, p.x_map"),
    on_n("bytes that do not come are waited for", "load.cuh", "C::kSwapped ? units_of<C>(tile) * kRowsUnit<C> : p.x_box",
         "p.x_box"),
    on_n("both warpgroups have the first columns of the weight", "swapped_reader.cuh",
         "(panel * C::kColumns + this->group * 64) * 128",
         "panel * C::kColumns * 128"),
    on_n("every panel of x is the first", "swapped_reader.cuh", "smem.x(this->ring.stage) + panel * C::kRows * 128",
         "smem.x(this->ring.stage)"),
    on_n("the place in the ring is lost with a tile", "swapped_reader.cuh", "      this->ring = consumer.ring;\n", ""),
    on_n("neighbours do not exchange sums", "swapped.cuh", "odd ? own[0] : own[1], 4);", "odd ? own[0] : own[1], 0);"),
    on_n("both lanes of a pair have the even row", "swapped.cuh", "lane % 4 * 2 + odd;", "lane % 4 * 2;"),
    on_n("columns of a pair are exchanged", "swapped.cuh", "left, odd ? theirs : own[0], odd ? own[1] : theirs);",
         "left, odd ? own[1] : theirs, odd ? theirs : own[0]);"),
    on_n("the upper columns are the lower ones", "swapped.cuh", "column = first + 8 * half,", "column = first,"),
    on_n("warpgroups store the same columns", "swapped.cuh", "tile.column + group * 64 + threadIdx", "tile.column + threadIdx"),
    on_n("a row behind the group is stored", "swapped.cuh", "if (left <= 0 || !is_row<C>(p, tile, row)) continue;",
         "if (left <= 0) continue;"),
    on_n("a weight with its columns first is read as another", "swapped_reader.cuh", "kMAcross = C::kWeightAcross",
         "kMAcross = false",
         f"{KERNEL} -k bits_of_rows and columns"),
    on_n("segments are one chain", "swapped_chain.cuh", "using Segments = SegmentConsumer<", "using Segments = ChainConsumer<",
         f"{KERNEL} -k bits_of_rows and segments"),
    on_n("gathered rows behind the first do not come", "gathered.cuh", "if (C::kSwapped && taken[i] < 0) continue;",
         "if (C::kSwapped && (taken[i] < 0 || i > 0)) continue;", f"{KERNEL} -k bits_of_rows and gathered"),
)  # fmt: skip
