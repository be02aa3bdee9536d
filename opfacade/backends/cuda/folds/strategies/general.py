"""Numbers of folds of any program (kernels/reduction/general.cuh)."""

from __future__ import annotations

WARPS = 8  # per CTA, which folds one row at a time
MAX_CTAS = 4  # per SM
RESULT_BYTES = 8  # per result of a stage in the workspace
MAX_BYTES = 2**28  # of workspace, unless one row needs more
