"""Refuses SGLang models, pools and layers that this adapter does not support, when the backend is created."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sglang.srt.layers.radix_attention import RadixAttention

from opfacade.integrations.refusal import refuse
from opfacade.integrations.sglang.buffers import WAY, refuse_buffers
from opfacade.integrations.support import here, refusals
from opfacade.integrations.tensors import name_of

if TYPE_CHECKING:
    from opfacade.integrations.sglang.parts import AttentionLayer, Runner

LAYOUTS = ("nhd", "hnd")
_HINT = "Choose another backend for it."


def refuse_server(runner: Runner) -> None:
    """Raises UnsupportedError (OPF-I001), which names the first unsupported property of a server."""
    if runner.use_mla_backend:
        refuse(WAY, "OPF-I001", "use_mla_backend", expected="False", got=True, hint=_HINT)
    if not runner.spec_algorithm.is_none():
        hint = "Serve without speculative decoding, or choose another backend."
        refuse(WAY, "OPF-I001", "spec_algorithm", expected="none", got=runner.spec_algorithm, hint=hint)
    _refuse_pool(runner.token_to_kv_pool)
    for layer in runner.model.modules():
        if isinstance(layer, RadixAttention):
            refuse_layer(layer)
            refuse_buffers(runner.token_to_kv_pool, layer, runner.page_size or 1)
    _refuse_kernels(runner)


def _refuse_pool(pool: object) -> None:
    if hasattr(pool, "swa_kv_pool"):
        refuse(WAY, "OPF-I001", "token_to_kv_pool", expected="one pool for all layers", got="one with windows", hint=_HINT)
    for one in _pools(pool):
        layout = getattr(one, "kv_cache_layout", "nhd")
        if layout not in LAYOUTS:
            refuse(WAY, "OPF-I001", "kv_cache_layout", expected=" or ".join(LAYOUTS), got=layout, hint=_HINT)
        if getattr(one, "is_quantized_kv_cache", False):
            refuse(WAY, "OPF-I001", "kv_cache_dtype", expected="16 bits or fp8", got="blocks with factors", hint=_HINT)


def _pools(pool: object) -> Iterator[Any]:
    """The pool, and for a hybrid model also the inner pool of its attention layers."""
    inner = getattr(pool, "full_kv_pool", None)
    yield from (pool,) if inner is None else (pool, inner)


def _refuse_kernels(runner: Runner) -> None:
    own, cached = (name_of(dtype) for dtype in (runner.dtype, runner.kv_cache_dtype))
    if own is None or cached is None:
        got = f"{runner.dtype} with {runner.kv_cache_dtype}"
        refuse(WAY, "OPF-I001", "kv_cache_dtype", expected="16 bits or fp8", got=got, hint=_HINT)
    head_dim, page_size = int(runner.model_config.head_dim), runner.page_size or 1
    found = refusals(here(), head_dim=head_dim, page_size=page_size, dtype=own, kv_dtype=cached)
    if found and runner.device != "cpu":
        refuse(WAY, "OPF-I001", "model_config", expected="what a kernel takes", got=found[0], hint=_HINT)


def refuse_layer(layer: AttentionLayer) -> None:
    if layer.is_cross_attention or layer.attn_type != type(layer.attn_type).DECODER:
        refuse(WAY, "OPF-I001", "layer", expected="decoder attention", got=layer.attn_type, hint=_HINT)
    if layer.v_head_dim != layer.qk_head_dim:
        refuse(WAY, "OPF-I001", "v_head_dim", expected=str(layer.qk_head_dim), got=layer.v_head_dim, hint=_HINT)
    if layer.logit_cap and layer.logit_capping_method != "tanh":
        refuse(WAY, "OPF-I001", "logit_capping_method", expected="tanh", got=layer.logit_capping_method, hint=_HINT)


def refuse_arguments(kwargs: dict[str, Any]) -> None:
    for name, value in kwargs.items():
        if value is not None:
            refuse(WAY, "OPF-I001", name, expected="to be absent", got=type(value).__name__, hint=_HINT)
