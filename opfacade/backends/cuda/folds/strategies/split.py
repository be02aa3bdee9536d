"""Numbers of folds in parts (kernels/reduction/split.cuh). Parts of columns have the threads of columns."""

from __future__ import annotations

THREADS = 512  # per CTA, which folds one part of a row
MERGE_WARPS = 4  # per CTA of the second launch; each joins the parts of a row
MAX_PARTS = 1024  # so that a warp joins them in 32 steps
MAX_BATCH = 4  # vectors of a thread that are loaded before the first is used
LEAST_ROW, LEAST_COLUMN = 32768, 1024  # elements per part, at least
CTAS_OF_ROWS, CTAS_OF_COLUMNS = 2, 4  # per SM


def slots(stages: int) -> int:
    """States in the shared memory of a CTA: of each warp for each stage."""
    return stages * (THREADS // 32)
