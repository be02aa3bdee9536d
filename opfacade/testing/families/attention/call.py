"""Protocols of attention calls that checks use: the problems of all ops, and the tensors of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from opfacade.plans.attention import BatchPagedDecodeDescriptor, BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor
from opfacade.plans.mla import BatchMlaDecodeDescriptor

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeIs

    from opfacade.plans._attention.paging import PagedKvCacheDescriptor, PagedLatentCacheDescriptor

Paged: TypeAlias = BatchPagedDecodeDescriptor | BatchPagedPrefillDescriptor | BatchMlaDecodeDescriptor
PagedKv: TypeAlias = BatchPagedDecodeDescriptor | BatchPagedPrefillDescriptor
KvProblem: TypeAlias = PagedKv | BatchRaggedPrefillDescriptor  # problems with K and V, that is, without a latent cache
Problem: TypeAlias = Paged | BatchRaggedPrefillDescriptor


class Pooled(Protocol):
    """A problem whose keys are in pages of a pool."""

    @property
    def paged_kv(self) -> PagedKvCacheDescriptor | PagedLatentCacheDescriptor: ...


def is_paged(problem: object) -> TypeIs[Paged]:
    return hasattr(problem, "paged_kv")


def is_paged_kv(problem: object) -> TypeIs[PagedKv]:
    return hasattr(problem, "paged_kv")


class AttentionCall(Protocol):
    """The operands of all attention ops. A call of one op has only some of them, and optional ones may be None."""

    o: Tensor
    lse: Tensor | None
    q: Tensor
    q_nope: Tensor
    q_pe: Tensor
    q_scale: Tensor
    q_indptr: Tensor
    k: Tensor
    v: Tensor
    k_data: Tensor
    v_data: Tensor
    k_scale: Tensor
    v_scale: Tensor
    ckv: Tensor
    kpe: Tensor
    block_table: Tensor | None
    kv_lens: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    last_page_len: Tensor
    sinks: Tensor | None
    packed_mask: Tensor
    mask_indptr: Tensor
    head_params: Tensor | None
    row_params: Tensor | None
    key_params: Tensor | None
