"""Numbers of folds whose rows are shared by all CTAs of the GPU (kernels/reduction/spread.cuh)."""

from __future__ import annotations

THREADS = 64  # per CTA
MIN_CTAS = 4  # per SM: with more, ptxas would assign so few registers that few loads are in flight
VECTORS_AT_ONCE = 16  # that a lane loads, because few warps share an SM
HELD_IN_L2 = 40 * 2**20  # bytes, about, that are still in L2 when they are read again
CLUSTERED = 8  # SMs per row that a cluster uses well; with more, the whole GPU shares each row


def constants() -> dict[str, int]:
    """The names in the template."""
    return {"spread": True, "spread_threads": THREADS, "ctas_per_sm": MIN_CTAS, "far": VECTORS_AT_ONCE}
