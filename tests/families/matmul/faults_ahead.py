"""Faults in products of codes that are decoded while products run."""

from tests.mutation.mutant import cpu

KERNEL = "tests/families/matmul/test_ahead_kernel.py"
AHEAD = "kernels/matmul/coded/ahead.cuh"
PANELS = f"{KERNEL} -k added_once and uint4"
TILES = f"{KERNEL} -k every_tile and uint4"
BYTES = f"{KERNEL} -k every_tile and nvfp4"
LATE = "tests/families/matmul/test_coded_kernel.py -k run_before"


def ahead(name, old, new, tests=PANELS, file=AHEAD, **more):
    return cpu(f"products of codes that are decoded ahead: {name}", file, old, new, tests, **more)


FAULTS = (
    ahead("a panel has the codes of the one before", "begin(found, a[panel % 2], k,", "begin(found, a[0], k,"),
    ahead("codes are decoded over those that are multiplied", "a[(panel + 1) % 2], codes", "a[panel % 2], codes"),
    ahead("products of the panel before are not waited for", "    wgmma_wait<1>();\n", ""),
    ahead("x is free before it is read", "    release_x();\n    before = x_ring.stage;",
          "    before = x_ring.stage;\n    release_x();"),
    ahead("the next panel has the numbers of this", "codes(line_of_stage(), 2 * (panel + 1));",
          "codes(line_of_stage(), 2 * panel);"),
    ahead("the second two k-steps of a panel have the codes of the first", "2 * panel + 1);\n    issue",
          "2 * panel);\n    issue"),
    ahead("a k-step is multiplied twice", "    decode(next, first, k, panel, 1);\n",
          "    issue(found, a, own, 1, true);\n    decode(next, first, k, panel, 1);\n"),
    ahead("panels have the tables of the first", "tables, both, k / kCodesStep, panel, step);",
          "tables, both, k / kCodesStep, 0, step);",
          f"{KERNEL} -k added_once and nvfp4"),
    ahead("the last stage is the one before", "if (k + kCodesStep >= p.k) return", "if (k + 2 * kCodesStep >= p.k) return"),
    ahead("the last panels are lost", "if (k < end) multiply_rest(", "if (k > end) multiply_rest("),
    ahead("the second of the last panels is the first", "if (panel > 0) decode(a, PanelCodes(line, panel), k, panel);", ""),
    ahead("the last panels have no product but the last", "begin(found, a, k, panel, accumulate || panel > 0);",
          "begin(found, a, k, panel, accumulate);", f"{KERNEL} -k added_once and uint4 and few"),
    ahead("sums of a segment have those of the one before", "multiply(found, a, k, k > begin, next);",
          "multiply(found, a, k, k > 0, next);"),
    ahead("the last segment is all", "begin == 0 ? found[i] : sums[i] + found[i]", "found[i]"),
    ahead("tables of the last groups are those of the next tile", "|| k >= p.k;", "|| k + kCodesStep >= p.k;"),
    ahead("the next tile has the tables of this", "    if (last) tables.move(next, warpgroup);\n", "", TILES),
    ahead("tables of the next tile begin where those of this end", "tables.ask(last ? 0 : k);", "tables.ask(k);", TILES),
    ahead("the tile behind is the one before", "const int next = index + tiles.stride();", "const int next = index;", TILES),
    ahead("a stage of codes is not waited for",
          "    codes_ring.wait_full(smem.codes_full(codes_ring.stage));\n", "", LATE),
    ahead("a neighbour is not told that rows are read", "lane % C::kAside);", "CodedTiles<C>::aside());", TILES),
    ahead("scales of a word overlap", "scale << 8 * i", "scale << 4 * i", BYTES, "kernels/matmul/coded/tables.cuh"),
    ahead("a word of scales has one", ">> slot % kHeld * 8", ">> 0", BYTES, "kernels/matmul/coded/tables.cuh"),
    ahead("sums that are read at once are one", "sum[i] = add(token + i * step)", "sum[i] = add(token)", TILES,
          "kernels/matmul/coded/finish.cuh"),
)  # fmt: skip
