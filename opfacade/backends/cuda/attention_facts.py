"""What every CUDA attention kernel shares: refusals, compile-time facts, the promise, and the SKU made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from opfacade.backends.cuda import support
from opfacade.plans.attention import Attention
from opfacade.registry import Reason
from opfacade.sku import ROUNDOFF, UNDERFLOW, ErrorModel, KernelSku, PrecisionGuarantee
from opfacade.target import Target

REVISION = 1
HEAD_DIMS = (64, 128, 256)
_EVIDENCE = "tests/attention/test_attention_gpu.py::"


def declines(descriptor: Attention[Any], target: Target, dtypes: Sequence[str]) -> Iterator[Reason]:
    yield from support.arch_reasons(target)
    yield from support.choice_reason("OPF-S002", "dtype of the KV cache", descriptor.kv_dtype, dtypes)
    if descriptor.query_dtype != descriptor.kv_dtype:
        yield Reason("OPF-S002", "q_dtype", descriptor.query_dtype, f"the cache's, {descriptor.kv_dtype}")
    yield from support.choice_reason("OPF-S003", "head_dim", descriptor.dim, HEAD_DIMS)


def common_facts(descriptor: Any) -> dict[str, bool | int | str]:
    """Compile-time facts of every attention kernel."""
    facts: dict[str, bool | int | str] = {
        "dtype": descriptor.kv_dtype,
        "head_dim": descriptor.dim,
        "group": descriptor.group_size,
        "window": descriptor.window_left >= 0,
        "soft_cap": descriptor.logits_soft_cap > 0,
        "return_lse": descriptor.return_lse,
    }
    if hasattr(descriptor, "paged_kv"):
        size = descriptor.paged_kv.page_size
        facts |= {"page_table": descriptor.page_table, "pow2_pages": size & (size - 1) == 0}
    return facts


def error_model(descriptor: Attention[Any], tile: int, split: bool) -> ErrorModel:
    """Tensor cores round once every 16 products by truncation; f32 runs on CUDA cores, one rounding a product."""
    plain = descriptor.kv_dtype == "f32"
    constants = {
        "u_acc": 2.0**-24 if plain else 2.0**-23,
        "k_step": 1.0 if plain else 16.0,
        "u_p": ROUNDOFF[descriptor.kv_dtype],
        "eta_p": UNDERFLOW[descriptor.kv_dtype],
        "exp": 2.0**-21,
        "tanh": 2.0**-20,
        "tile": float(tile),
        "lanes": 1.0 if plain else 4.0,
        "split": float(split),
    }
    return ErrorModel(id="attention-f32" if plain else "attention-mma16", constants=tuple(sorted(constants.items())))


def guarantee(descriptor: Attention[Any], split: str, model: ErrorModel) -> PrecisionGuarantee:
    """Sums run in a fixed order without atomics. Where a split follows the batch, the order of a request's sum does too."""
    invariant = split in ("off", "fixed")
    evidence = [_EVIDENCE + "test_runs_repeat_bitwise"]
    if invariant:
        evidence.append(_EVIDENCE + "test_a_request_does_not_see_its_batch")
    plain = descriptor.kv_dtype == "f32"
    return PrecisionGuarantee(
        math_precision="f32" if plain else f"{descriptor.kv_dtype} products, P rounded to {descriptor.kv_dtype}",
        accumulator="f32",
        deterministic=True,
        batch_invariant="composition" if invariant else "none",
        error_model=model,
        evidence=tuple(evidence),
    )


def make_sku(
    descriptor: Attention[Any], target: Target, impl: str, facts: support.SpecPairs, promise: PrecisionGuarantee
) -> KernelSku:
    dtype = descriptor.kv_dtype
    return KernelSku(
        category=descriptor.category,
        op=descriptor.op,
        backend="cuda",
        arch=target.arch,
        impl=impl,
        revision=REVISION,
        dtypes=(("kv", dtype), ("o", dtype), ("q", dtype)),
        layout="strided",
        spec=tuple((name, value) for name, value in facts if name != "dtype"),
        precision_guarantee=promise,
    )


def scalars(descriptor: Attention[Any]) -> tuple[Any, ...]:
    return (float(descriptor.scale), float(descriptor.logits_soft_cap), descriptor.window_left)


def token_axis(descriptor: Any) -> tuple[int, ...]:
    return (descriptor.paged_kv.token_axis,) if hasattr(descriptor, "paged_kv") else ()
