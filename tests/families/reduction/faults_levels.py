"""Faults planted in folds of two levels."""

from tests.mutation.mutant import cpu

LEVELS = "tests/families/reduction/test_levels.py"
ENGINE = "opfacade/backends/cuda/folds/level_engine.py"

FAULTS = (
    cpu(
        "levels: the workspace of a 64-bit result is that of 32 bits",
        ENGINE,
        "needed = ITEMSIZE[made.dtype] * math.prod",
        "needed = 4 * math.prod",
        f"{LEVELS} -k workspace_has",
    ),
    cpu(
        "levels: each stage of the second fold joins all of its axes",
        "opfacade/backends/cuda/folds/level_program.py",
        "return None if axes == fold else axes",
        "return None",
        f"{LEVELS} -k two_folds",
    ),
    cpu(
        "folds: a stage has each result once for all entries of an axis that it does not join",
        "opfacade/plans/_folds/values.py",
        "return result.reshape([1 if axis in program.joined(stage) else next(sizes)",
        "return result.reshape([next(sizes) if axis not in program.joined(stage) and axis == 0 else 1",
        f"{LEVELS} -k norms and every_layout",
    ),
)
