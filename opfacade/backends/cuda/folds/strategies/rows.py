"""Numbers of folds in rows (kernels/reduction/fold.cuh)."""

from __future__ import annotations

REGISTERS = 100  # of a thread for elements, about
TEMPORARY = 1.5  # registers per element, besides those that hold it
STATE_WORDS = 64  # registers per thread for states of stages that are joined in one pass
MAX_THREADS = 512  # per row, in one CTA
LEAST_THREADS = 128  # per CTA: several short rows share one
ROWS_OF_A_PAIR = 256  # rows of two elements per CTA: with fewer, CTAs mostly start and end
USUAL_PIECES, MAX_PIECES = 4, 8  # vectors per lane
SHORT_PIECES, SHORT_LANES = 4, 4  # short rows that are read once: vectors per lane, and least number of lanes
LEAST_LANES = 128  # per row with shared inputs, if it has so many vectors: with fewer, few rows take longer
MANY_ROWS = 2048  # above this, rows have fewer lanes each, with the same bits
CLUSTERS = (2, 4)  # larger clusters wait long for free SMs: a longer row is read again instead
STREAM_THREADS = 512  # per row that is read again
MAX_PARTS, LEAST_RUN = 32, 4  # parts of a row that is read again; vectors of a part that a thread loads at once
MAX_CTAS, PORTABLE_CTAS = 16, 8  # per cluster that shares such a row


def slots(threads: int, rows: int, stages: int) -> int:
    """States in the shared memory of a CTA: of each warp of its rows, for each stage along whole rows."""
    return rows * (threads // 32) * stages


def slots_of_parts(stages: int) -> int:
    """The same for a row that is cut: of each warp for each part. Stages take turns with two sets."""
    return min(stages, 2) * MAX_PARTS * (STREAM_THREADS // 32)
