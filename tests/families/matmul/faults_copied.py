"""Faults in products by mma.sync: of groups, of e4m3 codes and of weights in the type of x."""

from tests.mutation.mutant import cpu

GROUPS = "tests/families/matmul/test_copied_groups.py"
BYTES = "tests/families/matmul/test_copied_bytes.py"
K = "kernels/matmul"


def groups(name, file, old, new, tests="bound", **more):
    return cpu(f"groups by mma.sync: {name}", f"{K}/{file}", old, new, f"{GROUPS} -k {tests}", **more)


def numbers(name, old, new, tests="numbers"):
    return cpu(f"codes of e4m3: {name}", f"{K}/coded/bytes.cuh", old, new, f"{BYTES} -k {tests}")


FAULTS = (
    groups("a row that takes none is stored", "coded/finish.cuh",
           "    if (C::kGather && row_taken(p, tile, row) < 0) continue;\n", "", "takes_none"),
    groups("the table of groups lies in the stages", "coded/copied.cuh", "+ CodedShared<C>::kBytes))", "+ 0))"),
    groups("the last row of a tile's group is not read", "coded/copied.cuh", "found < tile.end ? found",
           "found + 1 < tile.end ? found"),
    groups("every group has the codes of the first", "coded/copied.cuh", "tile.weight * p.weight.batch * kSize", "0"),
    groups("lines of a thread take the row of its first", "coded/copied.cuh",
           "row_taken(p, tile, tile.row + line + i * kLines)", "row_taken(p, tile, tile.row + line)", "bound and gather"),
    groups("rows of no group keep their values where they become 0", "coded/copied.cuh",
           "if (smem.team == 0) clear_rest<C>(p);", "", "bound and cleared"),
    groups("the second eight elements of a step are the first", "coded/copied.cuh", "2 * step + lane / 16", "2 * step",
           "bound and bf16"),
    groups("scales of the whole weight are those of the first group", "../../csrc/matmul/_columns.cu.jinja",
           "p.weight_global[batch]", "*p.weight_global", "bound and nvfp4"),
    groups("the last part of k is left out", "coded/warps.cuh", "(segment.end - k + 63) / 64", "(segment.end - k) / 64",
           "bound and odd"),
    numbers("the order of bytes is the other", "? 0x5410 : 0x7632", "? 0x7632 : 0x5410"),
    numbers("the exponent has the wrong bias", "0x7b80u", "0x7b00u"),
    numbers("the exponent of f16 has the wrong bias", "0x5c00u", "0x6000u"),
    numbers("a NaN is a number", "  if (nan == 0) return;", "  return;"),
    numbers("the sign is lost", "(high & 0x8000u * kTwice) |", "0u |"),
    numbers("a group has the scale of the first", "at / kSlot)", "0)", "bound or any_batch"),
    numbers("the second line of a column is the first", "chunk / 8 * kCodesPart +", "0 +", "bound or any_batch"),
)  # fmt: skip
