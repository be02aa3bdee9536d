"""Answers to an engine's capability queries before it loads a model, derived from `explain`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from opfacade import Preference, Target, errors, explain
from opfacade.core.dtypes import FloatDType
from opfacade.plans._attention.variant import Variant
from opfacade.plans.attention import BatchPagedDecodeDescriptor, BatchPagedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.plans.kv_cache import PagedKvAppendDescriptor

if TYPE_CHECKING:
    from opfacade.select.explanation import Explanation

USUAL = "sm_90a"  # the assumed architecture if there is no GPU


def here() -> Target:
    """The target for which the queries are answered."""
    current = Target.current()
    return Target.parse(USUAL) if current.is_cpu else current


def target_of(major: int, minor: int) -> Target:
    """The target of a compute capability; from 9.0 on, the architecture-specific target."""
    return Target.parse(f"sm_{major}{minor}{'a' if major >= 9 else ''}")


@lru_cache(maxsize=1024)
def refusals(
    target: Target, *, head_dim: int = 128, page_size: int = 16, dtype: FloatDType = "bf16", kv_dtype: FloatDType | None = None,
    causal: bool = True, window_left: int = -1, sinks: bool = False, variant: Variant | None = None,
) -> tuple[str, ...]:  # fmt: skip
    """Reasons why no CUDA kernel supports decode, prefill or append with such a cache, each as `op: reason`.

    Empty if all are supported. variant: the prefill's variant, for example for a window on both sides.
    """
    kind: dict[str, Any] = {"head_dim": head_dim, "page_size": page_size, "dtype": kv_dtype or dtype}
    more: dict[str, Any] = {"q_dtype": dtype, "window_left": window_left, "sinks": sinks}
    try:
        asked = _asked(kind, more, causal, variant)
    except errors.DescriptorError as error:
        return (str(error),)
    found = [explain(descriptor, Preference(backend="cuda"), target) for descriptor in asked]
    return tuple(first_reason(one) for one in found if one.chosen is None)


def _asked(
    kind: dict[str, Any], more: dict[str, Any], causal: bool, variant: Variant | None
) -> tuple[BatchPagedDecodeDescriptor, BatchPagedPrefillDescriptor, PagedKvAppendDescriptor]:
    """The descriptors of an engine's operations on such a cache. Raises DescriptorError if the facts are invalid."""
    pool, dtype = PagedKvCacheDescriptor(num_total_pages=64, num_kv_heads=1, layout="NHD", **kind), more["q_dtype"]
    scale = "none" if pool.dtype == dtype else "tensor"
    common: dict[str, Any] = {"batch_size": 4, "paged_kv": pool, "page_table": "block", "kv_scale": scale}
    scores = common | {"num_qo_heads": 4, "return_lse": False} | more
    return (
        BatchPagedDecodeDescriptor(**scores),
        BatchPagedPrefillDescriptor(total_num_rows=64, causal=causal, variant=variant, **scores),
        PagedKvAppendDescriptor(total_num_rows=64, new_dtype=dtype, **common),
    )


def first_reason(found: Explanation) -> str:
    reasons = [str(reason) for option in found.options if option.candidate.backend == "cuda" for reason in option.reasons]
    return f"{found.descriptor.op}: {reasons[0] if reasons else f'no kernel for {found.target.arch}'}"
