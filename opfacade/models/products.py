"""The matrix products of a model: projections of attention, feed-forward layers, mixtures of experts, and the head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opfacade.core.descriptor import Descriptor
from opfacade.models.facts import Latent, ModelFacts
from opfacade.plans.matmul import MatmulDescriptor, Scaling
from opfacade.plans.moe import FusedMoeDescriptor

_BLOCK = Scaling(kind="block", x_scale_layout="column")  # as Quant(scale="group", scale_layout="column") writes row scales


def products(model: ModelFacts, rows: int) -> Iterator[Descriptor[Any]]:
    """The products of a step with `rows` rows, each once.

    The head is included for up to 256 rows, because it is applied to one row per request. A model that is published with block
    scales multiplies in e4m3, except for its head and its router.
    """
    for n, k in dict.fromkeys(_shapes(model)):
        yield _product(model, rows, n, k)
    if model.latent is not None:
        yield from _absorbed(model, model.latent, rows)
    if model.router is not None:
        yield _plain(rows, model.experts, model.hidden, model.biased)
        yield _experts(model, rows)
    if rows <= 256:
        yield _plain(rows, model.vocab, model.hidden, False)


def _shapes(model: ModelFacts) -> Iterator[tuple[int, int]]:
    """n and k of the products whose weights are quantised in quantised models."""
    values, latent = model.heads * model.head_dim, model.latent
    if latent is None:
        yield (model.heads + 2 * model.kv_heads) * model.head_dim, model.hidden
    else:
        yield latent.q_rank, model.hidden
        yield latent.rank + latent.rope_dim, model.hidden
        yield values, latent.q_rank
        yield model.heads * (latent.nope_dim + latent.value_dim), latent.rank
        values = model.heads * latent.value_dim
    yield model.hidden, values
    if model.width is None or model.dense_layers:
        yield 2 * model.intermediate, model.hidden
        yield model.hidden, model.intermediate


def _absorbed(model: ModelFacts, latent: Latent, rows: int) -> Iterator[Descriptor[Any]]:
    """The products for each head: queries into the latent space, and values out of it."""
    for n, k in ((latent.rank, latent.nope_dim), (latent.value_dim, latent.rank)):
        yield MatmulDescriptor(total_num_rows=rows, n=n, k=k, batch=model.heads, dtype="bf16")


def _product(model: ModelFacts, rows: int, n: int, k: int) -> MatmulDescriptor:
    if model.scale == "group":
        return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="f8_e4m3", scaling=_BLOCK)
    return _plain(rows, n, k, model.biased)


def _plain(rows: int, n: int, k: int, bias: bool) -> MatmulDescriptor:
    return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="bf16", bias=bias)


def _experts(model: ModelFacts, rows: int) -> FusedMoeDescriptor:
    """The whole layer of experts; in gpt-oss, experts have interleaved gates and ups, biases and limits."""
    pairs: dict[str, Any] = {"halves": "interleaved", "limit": 7.0, "alpha": 1.702, "beta": 1.0, "bias": True}
    return FusedMoeDescriptor(
        total_num_rows=rows, experts=model.experts, top_k=model.top, hidden=model.hidden, width=model.width, dtype="bf16",
        router=model.router, scaling="block" if model.scale == "group" else None, shared_width=model.shared_width,
        **(pairs if model.activation == "swiglu_oai" else {}),
    )  # fmt: skip
