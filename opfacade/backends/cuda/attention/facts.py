"""Shared facts of CUDA attention kernels: refusals, compile-time facts, the guarantee, and their SKU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from opfacade.backends.cuda import support
from opfacade.core.candidate import Candidate, Reason, with_config
from opfacade.core.dtypes import ROUNDOFF, UNDERFLOW
from opfacade.core.guarantee import Condition, ErrorModel, PrecisionGuarantee
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._attention.paging import FP8
from opfacade.plans._attention.scoring import (
    FINITE_LOGITS,
    LSE_BASE,
    Attention,
    PagedAttention,
    transforms_scores,
    varied_facts,
)

if TYPE_CHECKING:
    from opfacade.core.descriptor import Descriptor


HEAD_DIMS = {64: 64, 128: 128, 256: 256}  # head_dim of q and k: head_dim of v and o
_EVIDENCE = "tests/families/attention/test_attention_gpu.py::"
_EVIDENCE_OF = {"mla_decode": "tests/families/mla/test_mla_gpu.py::"}  # overrides _EVIDENCE
_BITS = "tests/testing/test_determinism.py::"
_SAME_SPLIT = Condition(id="same_split", text="both batches select this SKU, with the same kv_split")
_CHUNKS = (512, 1024, 2048, 4096)  # tokens
_REPEATS = ("test_runs_repeat_bitwise_on_a_busy_gpu", "test_processes_repeat_bitwise")


def declines(
    descriptor: Attention[Any], target: Target, dtypes: Sequence[str], head_dims: Mapping[int, int] = HEAD_DIMS
) -> Iterator[Reason]:
    """Reasons against any attention kernel, against a cache dtype outside `dtypes`, and against head dims outside
    `head_dims`."""
    yield from support.arch_reasons(target)
    if descriptor.kv_dtype in FP8:
        yield from support.fp8_reasons(target, descriptor.kv_dtype)
    yield from support.choice_reason("OPF-S002", "dtype of the KV cache", descriptor.kv_dtype, dtypes)
    if descriptor.kv_dtype in FP8:
        yield from support.choice_reason("OPF-S002", "q_dtype", descriptor.query_dtype, ("f16", "bf16"))
    elif descriptor.query_dtype != descriptor.kv_dtype:
        yield Reason("OPF-S002", "q_dtype", descriptor.query_dtype, f"the cache's, {descriptor.kv_dtype}")
    if descriptor.query_dtype not in FP8:
        yield from support.choice_reason("OPF-S002", "o_dtype", descriptor.output_dtype, (descriptor.query_dtype,))
    yield from support.choice_reason("OPF-S003", "head_dim", descriptor.dim, tuple(head_dims))
    if descriptor.dim in head_dims:
        yield from support.choice_reason("OPF-S003", "head_dim_vo", descriptor.dim_vo, (head_dims[descriptor.dim],))


def default_constants(descriptor: Attention[Any]) -> dict[str, bool | int | str]:
    """Template constants that `common_facts` omits at their default."""
    return {"q_dtype": descriptor.query_dtype, "kv_scale": "none", "sinks": False}


def common_facts(descriptor: Attention[Any]) -> dict[str, bool | int | str]:
    """Compile-time facts of every attention kernel. Rare facts at their default are omitted, so that ids do not change."""
    facts: dict[str, bool | int | str] = {
        "dtype": descriptor.kv_dtype,
        "head_dim": descriptor.dim,
        "group": descriptor.group_size,
        "window": descriptor.window_left >= 0,
        "soft_cap": descriptor.logits_soft_cap > 0,
        "return_lse": descriptor.return_lse,
    }
    if descriptor.kv_dtype in FP8:
        facts |= {"q_dtype": descriptor.query_dtype, "kv_scale": getattr(descriptor, "kv_scale", "none")}
    if descriptor.dim_vo != descriptor.dim:
        facts["head_dim_vo"] = descriptor.dim_vo
    if descriptor.sinks:
        facts["sinks"] = True
    facts |= varied_facts(descriptor)
    if isinstance(descriptor, PagedAttention):
        facts |= support.page_facts(descriptor.paged_kv, descriptor.page_table)
    return facts


def error_model(
    dtype: str, tile: int, merges: bool, query: str = "", scaled: bool = False, transforms: bool = False, line: bool = False
) -> ErrorModel:
    """Tensor cores truncate once every 16 products; f32 runs on CUDA cores, with one rounding per product.

    An fp8 cache is converted to f16 exactly; small elements of a bf16 q may underflow in f16 (eta_q).
    """
    plain, products = dtype == "f32", "f16" if dtype in FP8 else dtype
    constants = {
        "u_acc": 2.0**-24 if plain else 2.0**-23,
        "k_step": 1.0 if plain else 16.0,
        "u_p": ROUNDOFF[products],
        "eta_p": UNDERFLOW[products],
        "exp": 2.0**-21,
        "tanh": 2.0**-20,
        "tile": float(tile),
        "lanes": 1.0 if plain else 4.0,
        "split": float(merges),
    }
    if scaled:
        constants["scaled"] = 1.0
    if transforms:
        constants["function"] = 2.0**-21
    if line:
        constants["line"] = 1.0
    if dtype in FP8 and query == "bf16":
        constants["eta_q"] = 2.0**-39
    if query in FP8:
        constants |= _FP8_PRODUCTS | {"u_p": ROUNDOFF[query], "chain": float(tile)}
    model = "attention-f32" if plain else "attention-mma8" if query in FP8 else "attention-mma16"
    return ErrorModel(id=model, constants=tuple(sorted(constants.items())))


# One fp8 tensor-core step truncates its 33 addends (32 products and the accumulator) and the sum to 13 bits below the largest.
# A tile is a chain of such steps; tiles are added in f32. A weight whose score equals the base is 2^4.
_FP8_PRODUCTS = {"u_acc": 2.0**-24, "k_step": 32.0, "u_step": 34 * 2.0**-13, "eta_p": UNDERFLOW["f8_e4m3"] / 2**4}


def guarantee(
    dtype: str, split: str, model: ErrorModel, transforms: bool = False, tests: str = _EVIDENCE
) -> PrecisionGuarantee:
    """Sums have a fixed order without atomics. If the split depends on the batch, so does the order of a request's sum."""
    invariant = split in ("off", "fixed")
    evidence = [tests + "test_runs_repeat_bitwise", *(_BITS + test for test in _REPEATS)]
    if invariant:
        evidence += [tests + "test_a_request_does_not_see_its_batch", _BITS + "test_a_request_keeps_its_bits_in_any_batch"]
    conditions = (_SAME_SPLIT,) if invariant else ()
    return PrecisionGuarantee(
        math_precision="f32" if dtype == "f32" else f"{dtype}_products",
        accumulator="f32",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        batch_invariant="composition" if invariant else "none",
        error_model=model,
        conditions=(*conditions, FINITE_LOGITS) if transforms else conditions,
        evidence=tuple(evidence),
    )


@dataclass(frozen=True, slots=True)
class Identity:
    """All inputs of an attention SKU. tile: keys between two rescalings. merges: partial results may be merged. transforms: an
    expression computes the scores. line: the expression is the score plus a linear term, which is added to the exponents.
    revision: counts the changes of the implementation's output bits."""

    op: str
    arch: str
    impl: str
    revision: int
    facts: support.SpecPairs
    tile: int
    merges: bool
    transforms: bool = False
    line: bool = False


@lru_cache(maxsize=1024)
def make_sku(identity: Identity) -> KernelSku:
    """The SKU, which is cached because each new batch size selects the same kernel again."""
    facts = dict(identity.facts)
    dtype, split = str(facts.pop("dtype")), str(facts["split"])
    query, scaled = str(facts.pop("q_dtype", dtype)), any(facts.get(f"{x}_scale", "none") != "none" for x in ("kv", "q"))
    output = str(facts.pop("o_dtype", query))
    model = error_model(dtype, identity.tile, identity.merges, query, scaled, identity.transforms, identity.line)
    return KernelSku(
        category=Attention.category,
        op=identity.op,
        backend="cuda",
        arch=identity.arch,
        impl=identity.impl,
        revision=identity.revision,
        dtypes=(("kv", dtype), ("o", output), ("q", query)),
        layout="strided",
        spec=tuple(sorted((facts | LSE_BASE).items())),
        precision_guarantee=guarantee(
            query if query in FP8 else "f16" if dtype in FP8 else dtype,
            split,
            model,
            identity.transforms,
            _EVIDENCE_OF.get(identity.op, _EVIDENCE),
        ),
    )


def scalars(descriptor: Attention[Any]) -> tuple[Any, ...]:
    """Scale, cap and window. With a logits expression the cap is 1, because the expression receives scaled scores."""
    cap = 1.0 if transforms_scores(descriptor) else float(descriptor.logits_soft_cap)
    scale = float(descriptor.scale)
    if scale != 0.0:
        scale = math.copysign(max(abs(scale), _LEAST_SCALE), scale)
    return (scale, cap, descriptor.window_left)


# A smaller scale may become 0 in f32, and 0 times the score of a masked key is NaN. All keys have equal weight with both.
_LEAST_SCALE = 2.0**-100


def chunks_bound(descriptor: PagedAttention[Any], chunk: int) -> int:
    """Upper bound of the total number of chunks, at least one per request, for any lengths within the bounds."""
    batch, together = descriptor.batch_size, int(descriptor.kv_token_bound // chunk + descriptor.batch_size)
    return together if descriptor.max_kv_len is None else min(together, batch * max(1, -(-descriptor.max_kv_len // chunk)))


SPLIT_HINT = "Use a larger kv_split, or a smaller max_kv_indices or max_kv_len."


def token_axis(descriptor: Descriptor[Any]) -> tuple[int, ...]:
    return (descriptor.paged_kv.token_axis,) if hasattr(descriptor, "paged_kv") else ()


def split_configs(base: Candidate) -> tuple[Candidate, ...]:
    """Configs that `opfacade tune` measures if kv_split is "auto"; each has the default's guarantee or a stronger one."""
    chunks = (with_config(base, f"chunk={chunk}", _with_split(chunk), {"chunk": chunk}) for chunk in _CHUNKS)
    return (with_config(base, "split=off", _with_split("off"), {}), *chunks)


def _with_split(kv_split: str | int) -> Callable[[Any], Any]:
    """Replaces kv_split if it is "auto"."""
    return lambda d: d.model_copy(update={"kv_split": kv_split}).revalidated() if d.kv_split == "auto" else None
