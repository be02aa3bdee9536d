"""FlashInfer's latent attention: BatchMLAPagedAttentionWrapper."""

from __future__ import annotations

from functools import partialmethod
from typing import Any, NamedTuple

import torch

from opfacade.compat.attending import Table
from opfacade.compat.dtypes import FP8, as_dtype, name_of
from opfacade.compat.flashinfer._arguments import require_dtype, require_sizes
from opfacade.compat.flashinfer._attention.latent_call import Latent, LatentPlan, LatentScores, Told, latent_call, require_plan
from opfacade.compat.flashinfer._attention.paged_call import csr
from opfacade.compat.flashinfer._attention.results import LseForm, finished
from opfacade.compat.flashinfer._attention.row_requests import rows_apart
from opfacade.compat.flashinfer._attention.wrapper import Wrapper
from opfacade.compat.refusals import (
    number,
    refuse_unless,
    require_tensor,
    truth,
    unmapped,
    unplanned,
    wrong,
    wrong_shape,
)


class _Planned(NamedTuple):
    table: Table
    scores: LatentScores
    heads: int
    dtypes: tuple[torch.dtype | None, torch.dtype | None]
    told: Told


# Arguments of plan() in 0.7 for other forms, which must have their default values.
_SAYING_NOTHING = {
    "lse_mode": "none", "output_scale": "none", "scale_mode": "default", "skip_softmax": False, "use_sinks": False,
}  # fmt: skip


class BatchMLAPagedAttentionWrapper(Wrapper):
    """Latent attention (absorbed) over pages. FlashInfer's arguments; see docs/migrating.md.

    plan() reads qo_indptr on the host, after a copy if it is on the device. If all requests have the same number of rows, they
    are one call, also in a CUDA graph, where this number must not change. If the numbers differ, each row becomes a request
    with a new page table, so keys are read once per row; for this, plan() also reads kv_indptr on the host."""

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        use_cuda_graph: bool = False,
        qo_indptr: torch.Tensor | None = None,
        kv_indptr: torch.Tensor | None = None,
        kv_indices: torch.Tensor | None = None,
        kv_len_arr: torch.Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(float_workspace_buffer, use_cuda_graph)
        self._buffers = (qo_indptr, kv_indptr, kv_indices, kv_len_arr)
        names = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")
        self._require_buffers(list(zip(names, self._buffers, strict=True)))
        self._last = None if kv_len_arr is None or not use_cuda_graph else torch.zeros_like(kv_len_arr)
        self._captured_rows: int | None = None  # rows per request in a captured graph
        self._planned: _Planned | None = None

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        kv_len_arr: torch.Tensor,
        num_heads: int,
        head_dim_ckv: int,
        head_dim_kpe: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype | str,
        kv_data_type: torch.dtype | str,
        use_profiler: bool = False,
        **unknown: object,
    ) -> None:
        """qo_indptr, kv_indptr `[batch + 1]`, kv_indices `[n]`, kv_len_arr `[batch]`: i32, on any device.

        Within `opfacade.compat.preferring(...)`, a problem that the preference refuses is refused by plan(), before run()."""
        op = self._op
        refuse_unless(op, {name: (value, _SAYING_NOTHING.get(name)) for name, value in unknown.items()})
        refuse_unless(op, {"use_profiler": (use_profiler, False)})
        require_sizes(op, locals(), "num_heads", "head_dim_ckv", "head_dim_kpe", "page_size")
        dtypes = as_dtype(op, "q_data_type", q_data_type), as_dtype(op, "kv_data_type", kv_data_type)
        scale, causal = number(op, "sm_scale", sm_scale), truth(op, "causal", causal)
        names, given = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr"), (qo_indptr, kv_indptr, kv_indices, kv_len_arr)
        read = _, indptr, indices, _ = [*map(self._index, names, given, self._buffers)]
        batch = qo_indptr.shape[0] - 1
        if self._use_cuda_graph and self._buffers[0] is not None:
            self._fixed_batch(batch, self._buffers[0].shape[0] - 1)
        lens = self._values(given[3:], read[3:])[0][:batch]
        if lens.shape[0] != batch:
            raise wrong_shape(op, "kv_len_arr", f"[batch_size={batch}]", list(kv_len_arr.shape))
        q_lens = qo_indptr.diff()
        if q_lens.device.type == "cuda":
            q_lens = q_lens.cpu()
        each = self._rows_each(q_lens)
        if each is not None:
            last = torch.where(lens > 0, (lens - 1) % page_size + 1, 0).int()
            table = csr(indptr, indices, last if self._last is None else self._last, batch, self._use_cuda_graph)
        else:
            table = rows_apart(q_lens, kv_indptr.cpu(), (indices, lens), causal)
        scores = LatentScores(scale, q_len=each or 1, causal=causal)
        q_dtype, kv_dtype = dtypes
        if q_dtype is not None and kv_dtype is not None:
            elements = name_of(op, "q_data_type", q_dtype), name_of(op, "kv_data_type", kv_dtype)
            require_plan(op, table, scores, LatentPlan(num_heads, page_size, head_dim_ckv, head_dim_kpe, *elements))
        self._fill(given, self._buffers)
        if self._last is not None:
            self._last[:batch].copy_(last)
            self._captured_rows = each
        self._planned = _Planned(table, scores, num_heads, dtypes, Told(page_size, head_dim_ckv, head_dim_kpe))

    def _rows_each(self, q_lens: torch.Tensor) -> int | None:
        """The number of rows per request; None if requests differ or have no rows. A graph allows neither."""
        counts = set(q_lens.tolist()) or {1}
        each = counts.pop() if len(counts) == 1 else 0
        if each > 0 and not self._use_cuda_graph:
            return each
        if self._use_cuda_graph and (each <= 0 or self._captured_rows not in (None, each)):
            rows = "equally many rows" if self._captured_rows is None else f"{self._captured_rows} rows, as before,"
            hint = "A captured graph has one number of rows: make a wrapper for each, or pad."
            raise unmapped(self._op, "qo_indptr", f"{rows} of each request with use_cuda_graph=True", q_lens.tolist(), hint)
        return each or None

    def run(
        self,
        q_nope: torch.Tensor,
        q_pe: torch.Tensor,
        ckv_cache: torch.Tensor,
        kpe_cache: torch.Tensor,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        profiler_buffer: torch.Tensor | None = None,
        kv_len: torch.Tensor | None = None,
        page_table: torch.Tensor | None = None,
        return_lse_base_on_e: bool = False,
        o_scale: float | None = None,
        *,
        sinks: torch.Tensor | None = None,
        ckv_scale: float | None = None,
        ckv_scale_arr: torch.Tensor | None = None,
        kpe_scale: float | None = None,
        **unknown: object,
    ) -> Any:
        """q_nope, q_pe `[rows, num_heads, *]`, caches `[pages, page_size, *]`. Returns o like q_nope, and with return_lse the
        lse.

        ckv_scale, kpe_scale: scales of fp8 caches. If they differ, q_pe is multiplied by their quotient and rounded.
        """
        op, planned = self._op, self._planned
        if planned is None:
            raise unplanned(op)
        unknown |= {"profiler_buffer": profiler_buffer, "kv_len": kv_len, "page_table": page_table}
        refuse_unless(op, {name: (value, None) for name, value in (*unknown.items(), ("ckv_scale_arr", ckv_scale_arr))})
        refuse_unless(op, {"o_scale": (o_scale, 1.0)})
        require_dtype(op, "q_nope", planned.dtypes[0], q_nope)
        require_dtype(op, "ckv_cache", planned.dtypes[1], ckv_cache)
        if q_nope.dim() != 3:
            require_tensor(op, "q_nope", q_nope, "rows, num_heads, head_dim_ckv")
        base = "ln" if truth(op, "return_lse_base_on_e", return_lse_base_on_e) else "log2"
        form = LseForm(return_lse, base, given=lse).checked(op, *q_nope.shape[:2])
        rows = planned.table.batch * planned.scores.q_len
        if tuple(q_nope.shape[:2]) != (rows, planned.heads):
            expected = f"[rows={rows}, num_heads={planned.heads}, ...], as passed to plan()"
            raise wrong_shape(op, "q_nope", expected, list(q_nope.shape))
        factor, ratio = _factors(op, ckv_cache, (ckv_scale, kpe_scale))
        scores = planned.scores._replace(sm_scale=planned.scores.sm_scale * factor)
        if ratio != 1.0:
            require_tensor(op, "q_pe", q_pe, "rows, num_heads, head_dim_kpe")
        tensors = Latent(q_nope, q_pe if ratio == 1.0 else (q_pe.float() * ratio).to(q_pe.dtype), ckv_cache, kpe_cache)
        call = latent_call(op, tensors, planned.table, scores, form, {"out": out, "sinks": sinks}, planned.told)
        self._run(call)
        return finished(*call.result, form, None if factor == 1.0 else factor)

    run_return_lse = partialmethod(run, return_lse=True)


def _factors(op: str, cache: torch.Tensor, given: tuple[float | None, float | None]) -> tuple[float, float]:
    """The factor of scores, the factor of o, and the additional factor of q_pe."""
    if cache.dtype not in FP8:
        refuse_unless(op, {"ckv_scale": (given[0], 1.0), "kpe_scale": (given[1], 1.0)}, "It is for a cache of fp8.")
        return 1.0, 1.0
    latent, rotated = given
    if latent is None or rotated is None:
        raise wrong(op, "ckv_scale" if latent is None else "kpe_scale", "a number with an fp8 cache", "None")
    factor = number(op, "ckv_scale", latent)
    if factor == 0.0:
        raise wrong(op, "ckv_scale", "a number other than 0", latent)
    return factor, number(op, "kpe_scale", rotated) / factor
