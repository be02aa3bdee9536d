"""Planted faults in grouped matrix products in which each group is a range of k (kernels/matmul/ranges.cuh)."""

from tests.mutation.mutant import cpu

KERNEL = "tests/families/matmul/test_k_groups_kernel.py"
ONE_MEMORY = "the emulator has no second proxy of shared memory"


def ranges(name, old, new, tests="every_length", file=KERNEL, **more):
    return cpu(f"products of ranges of k: {name}", "kernels/matmul/ranges.cuh", old, new, f"{file} -k {tests}", **more)


FAULTS = (
    cpu("products of ranges of k: rows of results have no memory", "csrc/matmul/k_groups.cc.jinja",
        "shared_with_boxes(kBoxes, kRows)", "kBoxes.begin", f"{KERNEL} -k gradients and bound"),
    ranges("a step that is not whole is loaded", "k + kStep <= own.range.stop", "k < own.range.stop", "gradients and bound"),
    ranges("a range that ends with a step has one more", "if (k == own.range.stop && k > own.range.first) return;", ""),
    ranges("an empty range has no step", "if (k == own.range.stop && k > own.range.first) return;",
           "if (k == own.range.stop) return;", "empty"),
    ranges("elements of x behind the range count", "tile.row, p.rows, k, stop);", "tile.row, p.rows, k, p.k);",
           "gradients and bound"),
    ranges("elements of the weight behind the range count", "tile.column, p.columns, k, stop);",
           "tile.column, p.columns, k, p.k);", "gradients and bound"),
    ranges("every group has the first range", "index / (this->down * this->across), p.k", "0, p.k", "bits_of_its_product"),
    ranges("ranges begin with the first element", "int k = own.range.first;", "int k = 0;"),
    ranges("copied ranges begin with the first element", "k * of.k, of.row", "0, of.row", "odd and bound"),
    ranges("copied ranges go on", "size = own.range.stop - own.range.first;", "size = p.k - own.range.first;", "odd and bound"),
    ranges("a step of the range is lost", "own.range.first + kStep - 1) / kStep", "own.range.first) / kStep"),
    ranges("a stage is copied before it is free", "  if (leads) ring.wait_empty(smem.empty(ring.stage));\n", "",
           "many and bound"),
    ranges("a copied stage is used before all have copied", "  named_sync(kBarrier, kWarpgroup);\n  if (leads)", "  if (leads)",
           tests="kernels and ranges", file="tests/emulator/test_order.py"),
    ranges("the stage behind a copied one is the same", "ring.advance(), k += kStep;\n", "k += kStep;\n", "many and bound"),
    ranges("a range that begins off 16 bytes is loaded", "|| own.range.first % (16 / C::kSize) == 0", "|| true",
           "rows and bound"),
    ranges("one copied step is enough", "} while (k < own.range.stop);", "} while (false);", "rows and bound"),
    ranges("copied operands are not seen by products", "  fence_async_shared();\n", "", "gradients and bound",
           blind=ONE_MEMORY),
)  # fmt: skip
