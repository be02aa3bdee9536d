"""Numbers of folds whose rows pass through shared memory (kernels/reduction/flat.cuh)."""

from __future__ import annotations

LEAST_BYTES = 2 * 2**20  # in all rows
LANES = (4, 8)  # per row that is read again
MAX_SIZE = 2  # bytes per element of rows that are read again
BYTES_OF_CTA = 8192  # of the widest operand, about
CTAS = 12  # per SM, at least: few warps hide little latency
