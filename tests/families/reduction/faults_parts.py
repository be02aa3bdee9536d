"""Faults in rows of folds that begin anywhere, and in rows that are cut into parts."""

from tests.mutation.mutant import cpu

PARTS = "tests/families/reduction/test_parts.py -k bits"
SPREAD = "tests/families/reduction/test_spread.py -k whole_gpu"
D = "kernels/reduction"

FAULTS = (
    cpu(
        "fold: a CTA of a row writes none but the first part",
        f"{D}/fold.cuh",
        "store_backwards(uniform, wave, first_piece(), end_piece());",
        "store_backwards(uniform, wave, first_piece(), min(end_piece(), M::kRun));",
        PARTS,
    ),
    cpu(
        "fold: the number of CTAs decides where a row is cut",
        f"{D}/fold.cuh",
        "return (pieces() + M::kRun - 1) / M::kRun; }",
        "return p.ctas; }",
        PARTS,
    ),
    cpu(
        "fold on the whole GPU: the states of a row end with those that a warp joins at once",
        f"{D}/spread.cuh",
        "first < p.parts * kWarps; first += 32 * kAtOnce",
        "first < min(p.parts * kWarps, 32 * kAtOnce); first += 32 * kAtOnce",
        SPREAD,
    ),
    cpu(
        "fold on the whole GPU: a CTA folds the lanes of the first one",
        f"{D}/spread.cuh",
        "lane(static_cast<int>(blockIdx.x) % kCtas * kSpreadThreads + static_cast<int>(threadIdx.x))",
        "lane(static_cast<int>(threadIdx.x))",
        SPREAD,
    ),
    cpu(
        "fold on the whole GPU: the workspace has room for a part of the states",
        "opfacade/backends/cuda/fold_engine.py",
        "needed: int = 4 * column_config.state_words(program) * rows * warps",
        "needed: int = 4 * rows * warps",
        "tests/families/reduction/test_spread.py -k workspace",
    ),
)
