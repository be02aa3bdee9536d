"""Numbers of the launch that finds the scale of all rows (kernels/reduction/scaled.cuh)."""

from __future__ import annotations

THREADS = 512  # per CTA
CTAS = 8  # in one cluster; 1 if the GPU has none


def slots() -> int:
    """States in the shared memory of a CTA: of each warp."""
    return THREADS // 32
