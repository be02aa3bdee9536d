"""FlashInfer's grouped products. Groups may have any size."""

from __future__ import annotations

import torch

from opfacade.compat.flashinfer._products.grouped import (
    Grouped,
    fp8,
    multiplied,
    require_blocks,
    require_groups,
    require_integers,
    require_mode,
    require_scales,
    result_dtype,
    sorted_rows,
)
from opfacade.compat.flashinfer._rows import require_out
from opfacade.compat.refusals import require_integer, require_tensor, truth, wrong, wrong_shape

_BLOCKS = (1, 128, 128)
_HALVES = (torch.float16, torch.bfloat16)


class SegmentGEMMWrapper:
    """Products of segments of rows, each with its own weight. The workspace and `backend` have no effect."""

    def __init__(self, float_workspace_buffer: torch.Tensor, backend: str = "auto") -> None:
        self.backend = backend

    def reset_workspace_buffer(self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor) -> None:
        """No effect, because plans have their own workspaces."""

    def run(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        batch_size: int,
        weight_column_major: bool,
        out: torch.Tensor | None = None,
        seg_lens: torch.Tensor | None = None,
        seg_indptr: torch.Tensor | None = None,
        weight_indices: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x `[rows, k]` times weights `[weights, n, k]` (column-major) or `[weights, k, n]`: `[rows, n]`.

        Segment i has rows seg_indptr[i] to seg_indptr[i + 1] - 1, or the next seg_lens[i] rows. weight_indices: the weight of
        each segment, which is copied; by default, segment i uses weight i."""
        op = "SegmentGEMMWrapper.run"
        batch_size = require_integer(op, "batch_size", batch_size)
        require_tensor(op, "weights", weights, "weights, n, k")
        owned = weights if truth(op, "weight_column_major", weight_column_major) else weights.mT
        if weight_indices is not None:
            owned = owned.index_select(0, require_integers(op, "weight_indices", weight_indices, batch_size))
        require_groups(op, x, owned, ("x", "weights"), ("rows, k", "weights, n, k"), _HALVES)
        if owned.shape[0] != batch_size:
            raise wrong_shape(op, "weights", f"{batch_size} weights, one per segment", list(weights.shape))
        indptr = _indptr(op, seg_lens, seg_indptr, batch_size)
        return multiplied(Grouped(op, x, owned, "ragged", indptr), out, x.dtype)

    forward = run


def group_gemm_fp8_nt_groupwise(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    m_indptr: torch.Tensor,
    scale_granularity_mnk: tuple[int, int, int] = _BLOCKS,
    scale_major_mode: str = "MN",
    mma_sm: int = 1,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    backend: str = "trtllm",
    segment_alignment: int = 1,
) -> torch.Tensor:
    """a `[rows, k]` times b `[groups, n, k]` transposed, both e4m3 or both e5m2, for rows m_indptr[g] to m_indptr[g + 1] - 1 of
    group g; the result is bf16 by default.

    scale_major_mode: "K" for a_scale `[rows, k / 128]` and b_scale `[groups, n / 128, k / 128]`; "MN" for both with k / 128
    before the other. mma_sm, backend and segment_alignment have no effect.
    """
    op = "group_gemm_fp8_nt_groupwise"
    fp8(op, a, b, "rows, k")
    require_blocks(op, scale_granularity_mnk)
    columns = require_mode(op, scale_major_mode)
    scales = require_scales(op, a_scale, b_scale, a, b, columns)
    indptr = require_integers(op, "m_indptr", m_indptr, b.shape[0] + 1)
    return multiplied(Grouped(op, a, b, "ragged", indptr, scales, columns), out, result_dtype(op, out, out_dtype))


def batch_deepgemm_fp8_nt_groupwise(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    masked_m: torch.Tensor,
    expected_m: int,
    scale_granularity_mnk: tuple[int, int, int] = _BLOCKS,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    backend: str = "deepgemm",
) -> torch.Tensor:
    """a `[groups, rows, k]` times b `[groups, n, k]` transposed, for the first masked_m[g] rows of each group: `[groups, rows,
    n]`.

    a_scale is `[groups, rows, k / 128]` and b_scale `[groups, n / 128, k / 128]`. Other rows of out are not written.
    expected_m and backend have no effect.
    """
    op = "batch_deepgemm_fp8_nt_groupwise"
    fp8(op, a, b, "groups, rows, k")
    require_blocks(op, scale_granularity_mnk)
    scales = require_scales(op, a_scale, b_scale, a, b, False)
    counts = require_integers(op, "masked_m", masked_m, b.shape[0])
    return multiplied(Grouped(op, a, b, "masked", counts, scales), out, result_dtype(op, out, out_dtype))


def group_deepgemm_fp8_nt_groupwise(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    m_indices: torch.Tensor,
    scale_granularity_mnk: tuple[int, int, int] = _BLOCKS,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """a `[rows, k]` times b `[groups, n, k]` transposed, where row r belongs to group m_indices[r]; rows with a negative index
    are not written.

    a_scale is `[rows, k / 128]` and b_scale `[groups, n / 128, k / 128]`. Rows need not be sorted by group."""
    op = "group_deepgemm_fp8_nt_groupwise"
    fp8(op, a, b, "rows, k")
    require_blocks(op, scale_granularity_mnk)
    scales = require_scales(op, a_scale, b_scale, a, b, False)
    order, indptr = sorted_rows(require_integers(op, "m_indices", m_indices, a.shape[0]), b.shape[0])
    dtype, shape = result_dtype(op, out, out_dtype), (a.shape[0], b.shape[1])
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=a.device)
    require_out(op, out, shape)
    one = Grouped(op, a[order], b, "ragged", indptr, (scales[0][order], scales[1]))
    return out.index_copy_(0, order, multiplied(one, out[order], dtype))


def _indptr(op: str, lens: torch.Tensor | None, indptr: torch.Tensor | None, count: int) -> torch.Tensor:
    if indptr is not None:
        return require_integers(op, "seg_indptr", indptr, count + 1)
    if lens is None:
        raise wrong(op, "seg_lens", "a tensor, because seg_indptr is None", None)
    own = require_integers(op, "seg_lens", lens, count)
    return torch.nn.functional.pad(own.cumsum(0, dtype=torch.int32), (1, 0))
