"""Answers to vLLM's capability queries before it loads a model, derived from `explain` for this GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionType, MultipleOf

from opfacade.core.dtypes import FloatDType
from opfacade.integrations.engines import VLLM
from opfacade.integrations.paged_layer import symmetric
from opfacade.integrations.support import here, refusals, target_of
from opfacade.integrations.vllm import NAME
from opfacade.integrations.vllm.cache_dtypes import CACHE_DTYPES

if TYPE_CHECKING:
    from opfacade.integrations.vllm.parts import Capability

_DTYPES: dict[torch.dtype, FloatDType] = {torch.float16: "f16", torch.bfloat16: "bf16"}


class OpfacadeBackend(AttentionBackend):  # type: ignore[misc]
    """Decoder attention over vLLM's pages, in either memory layout of the cache."""

    supported_dtypes: ClassVar[list[torch.dtype]] = list(_DTYPES)
    supported_kv_cache_dtypes: ClassVar[list[str]] = list(CACHE_DTYPES)
    forward_includes_kv_cache_update: bool = True

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[Any]:
        """Called after the backend was selected. An untested vLLM release gives a ReleaseWarning."""
        with VLLM.importing():
            from opfacade.integrations.vllm.impl import OpfacadeImpl

        VLLM.tell_release()
        return OpfacadeImpl

    @staticmethod
    def get_builder_cls() -> type[Any]:
        from opfacade.integrations.vllm.metadata import OpfacadeMetadataBuilder

        return OpfacadeMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: object = None) -> list[Any]:
        return [MultipleOf(1)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return not refusals(here(), head_dim=head_size)

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype: str | None) -> bool:
        if kv_cache_dtype is None or kv_cache_dtype == "auto":
            return True
        if kv_cache_dtype not in CACHE_DTYPES:
            return False
        kind = CACHE_DTYPES[kv_cache_dtype]
        return not refusals(here(), dtype="f16" if kind == "f16" else "bf16", kv_dtype=kind)

    @classmethod
    def supports_block_size(cls, block_size: int | None) -> bool:
        return block_size is None or not refusals(here(), page_size=block_size)

    @classmethod
    def supports_sink(cls) -> bool:
        return not refusals(here(), sinks=True)

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return not refusals(here(), window_left=127)

    @classmethod
    def supports_non_causal(cls) -> bool:
        return not refusals(here(), causal=False)

    @classmethod
    def validate_configuration(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: str | None, block_size: int | None, use_mla: bool,
        has_sink: bool, use_sparse: bool, use_mm_prefix: bool, use_per_head_quant_scales: bool, device_capability: Capability,
        attn_type: str, has_sliding_window: bool = False, use_non_causal: bool = False, **more: bool,
    ) -> list[str]:  # fmt: skip
        """vLLM's own reasons, and reasons against a window on both sides of a row, which is used if attention is not causal."""
        found: list[str] = super().validate_configuration(
            head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse, use_mm_prefix,
            use_per_head_quant_scales, device_capability, attn_type, has_sliding_window, use_non_causal, **more,
        )  # fmt: skip
        known = dtype in _DTYPES and (kv_cache_dtype or "auto") in CACHE_DTYPES
        if not (known and has_sliding_window and use_non_causal):
            return found
        both = refusals(
            target_of(device_capability.major, device_capability.minor), head_dim=head_size, page_size=block_size or 16,
            dtype=_DTYPES[dtype], sinks=has_sink, kv_dtype=CACHE_DTYPES[kv_cache_dtype or "auto"], causal=False,
            window_left=127, variant=symmetric(127),
        )  # fmt: skip
        return [*found, *(f"a window on both sides: {reason}" for reason in both)]

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return bool(attn_type == AttentionType.DECODER)

    @classmethod
    def supports_compute_capability(cls, capability: Capability) -> bool:
        return not refusals(target_of(capability.major, capability.minor))

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: str | None, block_size: int | None, use_mla: bool,
        has_sink: bool, use_sparse: bool, use_mm_prefix: bool, device_capability: Capability,
    ) -> str | None:  # fmt: skip
        """The reasons of `explain` against this combination; None if a kernel supports it."""
        if dtype not in _DTYPES or (kv_cache_dtype or "auto") not in CACHE_DTYPES:
            return f"dtype {dtype} with a cache of {kv_cache_dtype}"
        target = target_of(device_capability.major, device_capability.minor)
        found = refusals(
            target, head_dim=head_size, page_size=block_size or 16, dtype=_DTYPES[dtype], sinks=has_sink,
            kv_dtype=CACHE_DTYPES[kv_cache_dtype or "auto"],
        )  # fmt: skip
        return "; ".join(found) or None
