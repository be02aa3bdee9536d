"""Faults in products by mma.sync at any address."""

from tests.mutation.mutant import cpu

TESTS = "tests/families/matmul/test_direct_kernel.py"
K = "kernels/matmul/direct"


def fault(name, file, old, new, tests="bits_of_tiles"):
    return cpu(f"products by mma.sync: {name}", f"{K}/{file}", old, new, f"{TESTS} -k {tests}")


FAULTS = (
    fault("a line that begins between two words is not shifted", "lines.cuh", "? 0x5432u", "? 0x3210u"),
    fault("a line begins at the start of its chunk", "lines.cuh", "(over / 2 + threadIdx.x % 4) * 4", "threadIdx.x % 4 * 4"),
    fault("the first elements of an unaligned line are not stored", "tile.cuh",
          "x.store_first(base, x_first), ", ""),
    fault("the chunk after the last element is read", "lines.cuh", "bytes = 2 * min(max(left - at, 0), 8)", "bytes = 16",
          "nothing_outside"),
    fault("an unaligned line lacks its last chunk", "lines.cuh", "more = shifted && chunk == 0 ? mine : 0", "more = 0"),
    fault("a step at the end of a line is copied whole", "lines.cuh",
          "last = size - kDirectStep - 8", "last = size - kDirectStep", "past_its_end"),
    fault("elements that are not adjacent have the stride of the first", "lines.cuh", "uint32_t{begin[each]} << 16",
          "uint32_t{begin[1]} << 16", "addresses"),
    fault("k-steps that are left over are dropped", "tile.cuh",
          "for (; steps > 0; --steps, at += 32)", "for (; steps > 4; --steps, at += 32)"),
    fault("a stage is read before it has arrived", "tile.cuh", "cp_async_wait<kAhead - 1>();", "cp_async_wait<kAhead>();"),
    fault("segments are one chain", "tile.cuh",
          "if (C::kSegments && from > begin && from % length == 0)", "if (C::kSegments && length == 0)"),
    fault("the sums of the last team are left out", "tile.cuh",
          "for (int i = 1; i < many; ++i)", "for (int i = 1; i + 1 < many; ++i)"),
    fault("eight rows are finished as sixteen", "tile.cuh", "tile.end = min(tile.end, tile.row + C::kRows);", ""),
    fault("stages of the last tile are overwritten while they are read", "tile.cuh",
          "    sync();  // all threads have read the stages of the previous tile\n", "", "several_tiles"),
)  # fmt: skip
