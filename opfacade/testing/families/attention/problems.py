"""Random problems of attention over K and V."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor
from opfacade.plans._attention.variant import (
    Variant,
    exp2,
    kv_pos,
    min_,
    per_head,
    per_key,
    per_row,
    q_pos,
    query,
    score,
    select,
)
from opfacade.plans._attention.variant_examples import alibi, document_mask, sliding_window, soft_cap
from opfacade.plans.attention import (
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
)
from opfacade.testing.families._problems import cache, scores, small_cache, small_scores
from opfacade.testing.harness import harness_for

if TYPE_CHECKING:
    pass

# Sizes of common models, and sizes that kernels must support as well.
GROUPS, HEAD_DIMS = (1, 4, 5, 7, 8, 16), (64, 128, 256)
_GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 20)


VARIANTS = (
    alibi(1),
    sliding_window(100),
    document_mask(),
    soft_cap(5.0),
    Variant(
        logits=select(kv_pos % 5 < per_row("phase") + 2, 0.5 * score, score - exp2(min_(score, 4.0))),
        mask=(kv_pos <= q_pos) | (per_key("shared") < 1),
        query=query * select(q_pos > 50, 1.25, 0.75) / (1.0 + abs(per_head("damping"))),
    ),
)


def prefill(rng: random.Random, tokens: int) -> Descriptor[Any]:
    pool = cache(rng, ("f16", "bf16"), (64, 128, 256), tokens)
    return BatchPagedPrefillDescriptor(
        batch_size=rng.choice((1, 2, 3, 5, 9, 33)),
        total_num_rows=rng.choice((1, 2, 17, 63, 130, 300, 700)),
        num_qo_heads=pool.num_kv_heads * rng.choice(_GROUPS),
        causal=rng.random() < 0.6,
        paged_kv=pool,
        page_table=rng.choice(("csr", "block")),
        **scores(rng, tokens),
    )


def decode(rng: random.Random, tokens: int) -> Descriptor[Any]:
    pool = cache(rng, ("f16", "bf16", "bf16", "f32"), (64, 128, 256), tokens)
    return BatchPagedDecodeDescriptor(
        batch_size=rng.choice((1, 2, 3, 7, 16, 40, 130)),
        num_qo_heads=pool.num_kv_heads * rng.choice(_GROUPS),
        paged_kv=pool,
        page_table=rng.choice(("csr", "block")),
        **(shared := scores(rng, tokens)),
        # Half of the problems with an automatic split have bounds that do not guarantee short contexts, so they get another
        # split.
        max_kv_indices=rng.choice((None, 2**15)) if shared["kv_split"] == "auto" else None,
    )


def ragged(rng: random.Random, tokens: int) -> Descriptor[Any]:
    kv_heads = rng.choice((1, 2, 4))
    return BatchRaggedPrefillDescriptor(
        batch_size=rng.choice((1, 2, 4, 7)),
        total_num_rows=rng.choice((1, 15, 64, 200, 600)),
        total_kv_rows=rng.choice((0, 1, 100, 640, 2000)),
        num_qo_heads=kv_heads * rng.choice(_GROUPS),
        num_kv_heads=kv_heads,
        head_dim=rng.choice((64, 128, 256)),
        causal=rng.random() < 0.6,
        dtype=rng.choice(("f16", "bf16")),
        **scores(rng, tokens),
    )


def _fp8(rng: random.Random, plain: BatchPagedDecodeDescriptor | BatchPagedPrefillDescriptor) -> dict[str, Any]:
    cache = plain.paged_kv.model_dump() | {"dtype": rng.choice(("f8_e4m3", "f8_e5m2"))}
    return {
        "paged_kv": cache,
        "q_dtype": rng.choice(("f16", "bf16")),
        "kv_scale": rng.choice(("none", "tensor", "head", "head")),
    }


def attention_more(rng: random.Random, plain: Any) -> dict[str, Any]:
    """Random fields: sinks, an fp8 cache, or both."""
    fp8 = hasattr(plain, "paged_kv") and rng.random() < 0.7
    return {"sinks": not fp8 or rng.random() < 0.4} | (_fp8(rng, plain) if fp8 else {})


def prefill_more(rng: random.Random, plain: object) -> dict[str, Any]:
    """Random optional fields of attention, or a variant, a packed mask, or both."""
    if rng.random() < 0.5:
        return attention_more(rng, plain)
    fields = rng.choice(({"custom_mask": True}, {"variant": rng.choice(VARIANTS), "custom_mask": rng.random() < 0.4}))
    return fields | {"logits_soft_cap": 0.0}


def ragged_more(rng: random.Random, plain: object) -> dict[str, Any]:
    """The fields of prefill_more, and heads whose v and k have different widths."""
    fields = prefill_more(rng, plain)
    if rng.random() < 0.25:
        fields |= rng.choice(({"head_dim": 192, "head_dim_vo": 128},) * 3 + ({"head_dim_vo": 96},))
    return fields


def small_prefill(rng: random.Random) -> Descriptor[Any]:
    fields = _small_paged(rng)
    fields |= _small_more(rng, fields)
    return BatchPagedPrefillDescriptor(total_num_rows=rng.randint(1, 9), causal=rng.random() < 0.5, **fields)


def small_decode(rng: random.Random) -> Descriptor[Any]:
    return BatchPagedDecodeDescriptor(**_small_paged(rng))


def small_ragged(rng: random.Random) -> Descriptor[Any]:
    heads = rng.choice((1, 1, 2))
    fields = small_scores(rng, heads)
    return BatchRaggedPrefillDescriptor(
        batch_size=rng.randint(1, 4),
        total_num_rows=rng.randint(1, 9),
        total_kv_rows=rng.randint(0, 30),
        num_kv_heads=heads,
        head_dim=rng.choice((8, 16, 64)),
        head_dim_vo=rng.choice((None, None, 24)),
        causal=rng.random() < 0.5,
        dtype=rng.choice(("f16", "bf16", "f32")),
        **fields,
        **_small_more(rng, fields),
    )


def _small_paged(rng: random.Random) -> dict[str, Any]:
    pool = small_cache(rng)
    fields: dict[str, Any] = {"paged_kv": pool, "page_table": rng.choice(("csr", "block"))}
    fields["batch_size"] = rng.randint(1, 4)
    if rng.random() < 0.3:
        fields["paged_kv"] = pool.model_dump() | {"dtype": rng.choice(("f8_e4m3", "f8_e5m2"))}
        fields |= {"q_dtype": rng.choice(("f16", "f32")), "kv_scale": rng.choice(("none", "tensor", "head"))}
    return fields | small_scores(rng, pool.num_kv_heads)


def _small_more(rng: random.Random, fields: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"custom_mask": rng.random() < 0.3}
    if rng.random() < 0.3 and fields["logits_soft_cap"] == 0:
        found["variant"] = rng.choice(VARIANTS)
    return found


def fp8_descriptor(op: str, seed: int, tokens: int = 6000) -> Descriptor[Any]:
    """A prefill with fp8 q, k and v that a kernel accepts. Its random numbers are drawn after all others, so that the problems
    of other functions keep their seeds."""
    rng = random.Random(f"fp8 {op} {seed}")
    plain: Any = harness_for(op).problem(op, seed, tokens)
    fields: dict[str, Any] = {"q_scale": rng.choice(("none", "tensor", "head")), "o_dtype": rng.choice((None, "bf16", "f16"))}
    if op == "paged_prefill":
        pool = {"page_size": rng.choice((16, 16, 48, 64, 128)), "head_dim": 128, "dtype": "f8_e4m3"}
        pool["num_total_pages"] = max(4, plain.kv_token_bound // pool["page_size"])
        fields |= {"paged_kv": plain.paged_kv.model_dump() | pool, "kv_scale": rng.choice(("none", "tensor", "head"))}
    else:
        fields |= {"head_dim": 128, "dtype": "f8_e4m3"}
    made: Descriptor[Any] = type(plain).model_validate(plain.model_dump() | fields | {"sinks": rng.random() < 0.2})
    return made


def head_variants(op: str, special: bool = False, tokens: int = 2000) -> list[Descriptor[Any]]:
    """A problem for each combination of group size and head size that models use."""
    draw = harness_for(op).special_problem if special else harness_for(op).problem
    return [_with_heads(draw(op, 1000 * dim + group, tokens), group, dim) for group in GROUPS for dim in HEAD_DIMS]


def _with_heads(plain: Any, group: int, dim: int) -> Descriptor[Any]:
    fields = plain.model_dump() | {"num_qo_heads": plain.kv_heads * group}
    own = {"head_dim": dim, "head_dim_vo": None}
    fields |= {"paged_kv": fields["paged_kv"] | {"head_dim": dim}} if hasattr(plain, "paged_kv") else own
    made: Descriptor[Any] = type(plain).model_validate(fields)
    return made
