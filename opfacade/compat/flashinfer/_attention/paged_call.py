"""One call of attention over pages, shared by decode and prefill wrappers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from opfacade.compat.attending import Ask, Call, Pools, Table, over_pages
from opfacade.compat.constants import head_values
from opfacade.compat.flashinfer._arguments import How
from opfacade.compat.flashinfer._attention.results import LseForm
from opfacade.compat.flashinfer._attention.scales import Factors, Given, Shape, factors_of
from opfacade.compat.refusals import number, require_dense, require_tensor
from opfacade.variant_examples import alibi_slopes


class Mask(NamedTuple):
    """packed: the mask bits; indptr: the first byte of each request."""

    packed: torch.Tensor
    indptr: torch.Tensor

    @property
    def operands(self) -> dict[str, torch.Tensor]:
        return {"packed_mask": self.packed, "mask_indptr": self.indptr}


class Wanted(NamedTuple):
    """Options of one run: scales, sinks, a mask, and the result tensors."""

    given: Given
    lse: LseForm
    out: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    mask: Mask | None = None


def csr(indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor, batch: int, exact: bool) -> Table:
    """FlashInfer's page table. Index tensors may be longer than the batch. exact: tensors of later calls have exactly this
    size."""
    operands = {"kv_indptr": indptr[: batch + 1], "kv_indices": indices, "last_page_len": last_page_len[:batch]}
    return Table("csr", operands, batch, indices.shape[0], fixed=exact)


def call_of(
    op: str, how: How, q: torch.Tensor, pools: Pools, table: Table, wanted: Wanted, q_indptr: torch.Tensor | None = None
) -> tuple[Call, Factors]:
    heads, dim = q.shape[1], q.shape[2]
    shape = Shape(q.dtype, pools.k.dtype, heads, pools.facts[2], q.device, paged=True)
    scale = dim**-0.5 if how.sm_scale is None else number(op, "sm_scale", how.sm_scale)
    factors = factors_of(op, scale, wanted.given, shape)
    ask = ask_of(op, how, factors, wanted, q)
    return over_pages(ask, q, pools, table, q_indptr), factors


def ask_of(op: str, how: How, factors: Factors, wanted: Wanted, q: torch.Tensor) -> Ask:
    scores, operands = how.scores, dict(factors.operands)
    if factors.head_factor:
        scores = scores._replace(head_factor=True)
    if scores.bias != "none":
        slopes = head_values(tuple(alibi_slopes(q.shape[1])), q.device)[None]
        # Head parameters are in the order of their names: "factor", then "slopes".
        operands["head_params"] = torch.cat([operands["head_params"], slopes]) if factors.head_factor else slopes
    if wanted.sinks is not None:
        require_tensor(op, "sinks", wanted.sinks, "num_qo_heads")
        operands["sinks"] = wanted.sinks.float()
    if wanted.mask is not None:
        scores = scores._replace(causal=False)  # FlashInfer's mask replaces causal
        operands |= wanted.mask.operands
    if wanted.out is not None and not isinstance(wanted.out, torch.Tensor):
        require_dense(op, "out", wanted.out, "rows, num_qo_heads, head_dim")
    return Ask(
        op,
        scores,
        factors.sm_scale,
        how.kv_split,
        wanted.lse.wanted,
        how.o_dtype or (None if wanted.out is None else wanted.out.dtype),
        operands,
        wanted.out,
        wanted.lse.operand,
    )


def named(arguments: dict[str, Any]) -> dict[str, Any]:
    """The score arguments of a function, taken from its locals()."""
    return {name: value for name, value in arguments.items() if name not in ("self", "__class__")}
