"""The descriptors that a server of a model runs for usual batches in bf16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opfacade.core.descriptor import Descriptor
from opfacade.models.facts import Latent, ModelFacts, facts_of
from opfacade.models.products import products
from opfacade.plans import norm
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.plans.attention import (
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
    PagedKvCacheDescriptor,
)
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from opfacade.plans.mla import BatchMlaDecodeDescriptor, PagedLatentCacheDescriptor
from opfacade.plans.quantize import QuantizeDescriptor
from opfacade.plans.rotary import QkvPrepareDescriptor, RotaryDescriptor
from opfacade.plans.sampling import SampleDescriptor

BATCHES = (1, 8, 64, 256)  # requests of a decode step
CHUNK = (8, 2048)  # requests and rows of a prefill step
_STEPS = (*((batch, batch) for batch in BATCHES), CHUNK)  # requests and rows
MAX_KV_LEN = 8192
PAGES, PAGE_SIZE = 16384, 16
DTYPE: Any = "bf16"


def descriptors(name: str) -> tuple[Descriptor[Any], ...]:
    """Norms, rotation and append, attention, gated activations, quantisation, matrix products, layers of experts and sampling
    of a model, each once.

    Steps are decodes of 1, 8, 64 and 256 requests and a prefill of 2048 rows, over block tables with pages of 16 tokens and
    requests of up to 8192 tokens. Rows and caches are bf16; quantised tensors are e4m3. Raises DescriptorError (OPF-D060).
    """
    model = facts_of(name)
    made = [one for rows in (*BATCHES, CHUNK[1]) for one in _of_rows(model, rows)]
    made += [one for rows in (*BATCHES, CHUNK[1]) for one in products(model, rows)]
    made += _attention(model) if model.latent is None else _latent_attention(model, model.latent)
    made += [one for rows in BATCHES for one in _sampling(model, rows)]
    return tuple(dict.fromkeys(made))


def _of_rows(model: ModelFacts, rows: int) -> Iterator[Descriptor[Any]]:
    preset = getattr(norm, model.rounding)
    fields = {"total_num_rows": rows, "hidden": model.hidden, "dtype": DTYPE, "eps": model.eps}
    yield preset(**fields)
    yield preset(**fields, residual=True)
    yield preset(**fields, residual=True, quant=_quant(model))
    yield QuantizeDescriptor(total_num_rows=rows, hidden=model.hidden, dtype=DTYPE, quant=_quant(model))
    for count, width in _widths(model, rows):
        pairs, quants = model.activation == "swiglu_oai", (None, _quant(model))
        for quant in quants:
            yield GatedActivationDescriptor(
                total_num_rows=count, width=width, dtype=DTYPE, activation=model.activation, interleaved=pairs, quant=quant
            )
        yield QuantizeDescriptor(total_num_rows=count, hidden=width, dtype=DTYPE, quant=_quant(model))


def _quant(model: ModelFacts) -> norm.Quant:
    # Group scales have the layout that fp8 products with block scales read.
    return norm.Quant(scale="group", scale_layout="column") if model.scale == "group" else norm.Quant(scale="token")


def _widths(model: ModelFacts, rows: int) -> Iterator[tuple[int, int]]:
    """The rows and widths of activations, of dense layers and of the experts for all tokens."""
    if model.width != model.intermediate:
        yield rows, model.intermediate
    if model.width is not None:
        yield rows * model.top, model.width


def _attention(model: ModelFacts) -> Iterator[Descriptor[Any]]:
    pool = PagedKvCacheDescriptor(
        num_total_pages=PAGES,
        page_size=PAGE_SIZE,
        num_kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        dtype=DTYPE,
        layout="HND",
    )
    for window in model.windows:
        scores = {"num_qo_heads": model.heads, "window_left": window, "sinks": model.sinks, "return_lse": False}
        common: dict[str, Any] = {"page_table": "block", "paged_kv": pool, "max_kv_len": MAX_KV_LEN, **scores}
        for batch in BATCHES:
            yield BatchPagedDecodeDescriptor(batch_size=batch, **common)
        yield BatchPagedPrefillDescriptor(batch_size=CHUNK[0], total_num_rows=CHUNK[1], causal=True, **common)
    for batch, rows in _STEPS:
        fields: dict[str, Any] = {"batch_size": batch, "total_num_rows": rows, "paged_kv": pool, "page_table": "block"}
        yield PagedKvAppendDescriptor(**fields)
        yield QkvPrepareDescriptor(
            num_qo_heads=model.heads, rotary_dim=model.head_dim, dtype=DTYPE, norm="rms" if model.qk_norm else "none",
            eps=model.eps, **fields,
        )  # fmt: skip


def _latent_attention(model: ModelFacts, latent: Latent) -> Iterator[Descriptor[Any]]:
    pool = PagedLatentCacheDescriptor(num_total_pages=PAGES, page_size=PAGE_SIZE, dtype=DTYPE)
    for batch in BATCHES:
        yield BatchMlaDecodeDescriptor(
            batch_size=batch, num_qo_heads=model.heads, paged_kv=pool, page_table="block", max_kv_len=MAX_KV_LEN,
            return_lse=False,
        )  # fmt: skip
    # The halves of a latent row are written as K and V of one head.
    width = (pool.latent_dim + pool.rope_dim) // 2
    halves = PagedKvCacheDescriptor(
        num_total_pages=PAGES, page_size=PAGE_SIZE, num_kv_heads=1, head_dim=width, dtype=DTYPE, layout="NHD"
    )
    for batch, rows in _STEPS:
        yield PagedKvAppendDescriptor(batch_size=batch, total_num_rows=rows, paged_kv=halves, page_table="block")
        yield RotaryDescriptor(
            total_num_rows=rows, num_qo_heads=model.heads, num_kv_heads=1, head_dim=latent.rope_dim,
            rotary_dim=latent.rope_dim, interleaved=True, dtype=DTYPE,
        )  # fmt: skip
    yield BatchRaggedPrefillDescriptor(
        batch_size=CHUNK[0], total_num_rows=CHUNK[1], total_kv_rows=CHUNK[1], num_qo_heads=model.heads,
        num_kv_heads=model.kv_heads, head_dim=latent.nope_dim + latent.rope_dim, head_dim_vo=latent.value_dim, causal=True,
        dtype=DTYPE, max_kv_len=MAX_KV_LEN,
    )  # fmt: skip


def _sampling(model: ModelFacts, rows: int) -> Iterator[Descriptor[Any]]:
    yield SampleDescriptor(total_num_rows=rows, vocab=model.vocab)
    yield SampleDescriptor(total_num_rows=rows, vocab=model.vocab, top_k=True, top_p=True)
