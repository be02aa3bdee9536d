"""The problems of a step, derived from its requests. The server runs them, and they are compiled before it begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from examples.demo.lengths import Length
from examples.demo.pages import PageAllocator
from examples.demo.scheduler import Part, Scheduler, ServingStep
from examples.demo.settings import Settings
from opfacade.core.descriptor import Descriptor
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.plans.attention import BatchPagedDecodeDescriptor, BatchPagedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from opfacade.plans.matmul import MatmulDescriptor
from opfacade.plans.norm import NormDescriptor, Quant, huggingface
from opfacade.plans.quantize import QuantizeDescriptor
from opfacade.plans.rotary import QkvPrepareDescriptor
from opfacade.plans.sampling import SampleDescriptor

WIDTH = 2  # width of gates plus ups, relative to the model's hidden size


class Problems:
    """The descriptors over a pool of pages. hidden: the model's hidden size."""

    def __init__(self, settings: Settings, num_pages: int) -> None:
        s = self._settings = settings
        self.hidden = s.heads * s.head_dim
        # No page has two owners, so the batch never has more page indices than the pool has pages: the default of
        # max_kv_indices, num_total_pages, is the right bound.
        self.cache = PagedKvCacheDescriptor(
            num_total_pages=num_pages,
            page_size=s.page_size,
            num_kv_heads=s.kv_heads,
            head_dim=s.head_dim,
            dtype=s.dtype,
            layout="HND",
        )

    @property
    def has_layer(self) -> bool:
        """Whether heads can be rotated, and norms support the dtype of rows."""
        return self._settings.head_dim >= 2 and self._settings.dtype in ("f16", "bf16", "f32")

    def begins_block(self, step: ServingStep) -> bool:
        return (step.number - 1) % self._settings.every == 0

    def append(self, parts: Sequence[Part]) -> PagedKvAppendDescriptor:
        return PagedKvAppendDescriptor(batch_size=len(parts), total_num_rows=_rows(parts), paged_kv=self.cache)

    def prefill(self, parts: Sequence[Part]) -> BatchPagedPrefillDescriptor:
        heads, rows = self._settings.heads, _rows(parts)
        return BatchPagedPrefillDescriptor(
            batch_size=len(parts), total_num_rows=rows, num_qo_heads=heads, causal=True, paged_kv=self.cache
        )

    def decode(self, parts: Sequence[Part]) -> BatchPagedDecodeDescriptor:
        return BatchPagedDecodeDescriptor(batch_size=len(parts), num_qo_heads=self._settings.heads, paged_kv=self.cache)

    def draw(self, parts: Sequence[Part]) -> SampleDescriptor:
        s = self._settings
        return SampleDescriptor(total_num_rows=len(parts), vocab=s.vocab, dtype=s.dtype, top_k=True, top_p=True)

    def norm(self, rows: int, residual: bool) -> NormDescriptor:
        return huggingface(total_num_rows=rows, hidden=self.hidden, dtype=self._settings.dtype, residual=residual)

    def prepare(self, rows: int, requests: int) -> QkvPrepareDescriptor:
        s = self._settings
        return QkvPrepareDescriptor(
            total_num_rows=rows, num_qo_heads=s.heads, rotary_dim=s.head_dim // 2 * 2, dtype=self._dtype, paged_kv=self.cache,
            page_table="csr", batch_size=requests,
        )  # fmt: skip

    def gated(self, rows: int) -> GatedActivationDescriptor:
        return GatedActivationDescriptor(total_num_rows=rows, width=WIDTH * self.hidden, dtype=self._dtype)

    def quantise(self, rows: int) -> QuantizeDescriptor:
        width = WIDTH * self.hidden
        return QuantizeDescriptor(total_num_rows=rows, hidden=width, dtype=self._dtype, quant=Quant(scale="token"))

    def product(self, rows: int, n: int, k: int, add: bool = False) -> MatmulDescriptor:
        return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype=self._dtype, add=add)

    def logits(self, rows: int) -> MatmulDescriptor:
        return self.product(rows, self._settings.vocab, self.hidden)

    @property
    def qkv_columns(self) -> int:
        """The number of elements of q, k and v in a row."""
        s = self._settings
        return (s.heads + 2 * s.kv_heads) * s.head_dim

    def of(self, step: ServingStep) -> Iterator[Descriptor[Any]]:
        """All problems of a step."""
        yield self.append(step.parts)
        if step.prefill:
            yield self.prefill(step.prefill)
        if step.decode:
            yield self.decode(step.decode)
        if self.begins_block(step):
            if step.drawing:
                yield self.draw(step.drawing)
            if self.has_layer:
                yield from self._layer(_rows(step.parts), len(step.parts))
                if step.drawing:
                    yield from (self.norm(len(step.drawing), False), self.logits(len(step.drawing)))

    def _layer(self, rows: int, requests: int) -> Iterator[Descriptor[Any]]:
        h, width = self.hidden, WIDTH * self.hidden
        yield from (self.norm(rows, False), self.product(rows, self.qkv_columns, h), self.prepare(rows, requests))
        yield from (self.product(rows, h, h), self.norm(rows, True), self.product(rows, 2 * width, h))
        yield from (self.gated(rows), self.quantise(rows), self.product(rows, h, width, add=True))

    @property
    def _dtype(self) -> Any:
        return self._settings.dtype


def _rows(parts: Sequence[Part]) -> int:
    return sum(part.rows for part in parts)


def planned(settings: Settings, lengths: Sequence[Length], num_pages: int) -> Iterator[ServingStep]:
    """The steps of a demo, derived from the lengths alone, because the schedule does not depend on results. Read each step
    before the next one."""
    scheduler = Scheduler(lengths, PageAllocator(num_pages), settings.page_size, settings.chunk)
    while (step := scheduler.next_step()) is not None:
        yield step
        scheduler.retire()
        if step.number == settings.max_steps:
            return
