"""Numbers of folds of ragged rows (kernels/reduction/ragged.cuh). Tiles of columns have the threads of columns."""

from __future__ import annotations

WARPS = 8  # per CTA
SHORT_ROW = 1024  # elements of the longest row that a warp folds
MAX_BATCH, LIGHT_BATCH = 8, 16  # elements of a thread that are loaded before the first is used; if a pass is short
LIGHT_STATES = 4  # registers per thread for states that leave enough for a larger batch
GROUP_ROWS, GROUP_BATCH = 4, 4  # short rows that a warp folds at a time, and elements per lane and row that it loads at once
GROUPED = 32  # elements that fit in a thread's registers, at least, if a warp folds several rows at a time
MIN_CTAS = 8  # per SM, if there are as many rows
ELEMENTS_OF_CTA = 32768  # about: smaller CTAs start more often, of larger ones the last run alone for long
COLUMN_GROUPS = 8  # threads that share a column of a row


def slots(stages: int) -> int:
    """States in the shared memory of a CTA: of each warp for each stage."""
    return stages * WARPS
