"""Random descriptors over everything the facade accepts, for tests, verification and fuzzing."""

from __future__ import annotations

import random
from typing import Any

from opfacade.descriptor import Descriptor
from opfacade.paging import PagedKvCacheDescriptor, PagedLatentCacheDescriptor
from opfacade.plans.attention import (
    BatchPagedDecodeDescriptor,
    BatchPagedPrefillDescriptor,
    BatchRaggedPrefillDescriptor,
)
from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from opfacade.plans.mla import BatchMlaDecodeDescriptor
from opfacade.variant import Variant, exp2, kv_pos, minimum, per_head, per_key, per_row, q_pos, query, score, select
from opfacade.variant_examples import alibi, document_mask, sliding_window, soft_cap

OPS = ("paged_prefill", "paged_decode", "ragged_prefill", "paged_kv_append", "merge_states", "mla_decode")
# What models have; and what kernels must not mind.
GROUPS, HEAD_DIMS = (1, 4, 5, 7, 8, 16), (64, 128, 256)
_GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 20)


def random_descriptor(op: str, seed: int, tokens: int = 6000) -> Descriptor[Any]:
    """A problem that every backend accepts. `tokens` bounds the keys of the whole batch. The seed says it all."""
    return _DRAW[op](random.Random(f"{op} {seed}"), tokens)


def special_descriptor(op: str, seed: int, tokens: int = 6000) -> Descriptor[Any]:
    """The same with what a kernel may lack and decline, such as an fp8 cache or sinks; the reference accepts it."""
    rng, plain = random.Random(f"special {op} {seed}"), random_descriptor(op, seed, tokens)
    return type(plain).model_validate(plain.model_dump() | _SPECIAL[op](rng, plain))


def fp8_descriptor(op: str, seed: int, tokens: int = 6000) -> Descriptor[Any]:
    """A prefill whose q, k and v are fp8, such as a kernel takes; the seeds of the others are as they were."""
    rng = random.Random(f"fp8 {op} {seed}")
    plain: Any = random_descriptor(op, seed, tokens)
    fields: dict[str, Any] = {"q_scale": rng.choice(("none", "tensor", "tensor")), "o_dtype": rng.choice((None, "bf16", "f16"))}
    if op == "paged_prefill":
        pool = {"page_size": rng.choice((16, 16, 48, 64, 128)), "head_dim": 128, "dtype": "f8_e4m3"}
        pool["num_total_pages"] = max(4, plain.kv_token_bound // pool["page_size"])
        fields |= {"paged_kv": plain.paged_kv.model_dump() | pool, "kv_scale": rng.choice(("none", "tensor", "head"))}
    else:
        fields |= {"head_dim": 128, "dtype": "f8_e4m3"}
    made: Descriptor[Any] = type(plain).model_validate(plain.model_dump() | fields | {"sinks": rng.random() < 0.2})
    return made


def head_variants(op: str, special: bool = False, tokens: int = 2000) -> list[Descriptor[Any]]:
    """A problem of an attention for each group of query heads and size of a head that models have."""
    draw = special_descriptor if special else random_descriptor
    return [_with_heads(draw(op, 1000 * dim + group, tokens), group, dim) for group in GROUPS for dim in HEAD_DIMS]


def _with_heads(plain: Any, group: int, dim: int) -> Descriptor[Any]:
    fields = plain.model_dump() | {"num_qo_heads": plain.kv_heads * group}
    own = {"head_dim": dim, "head_dim_vo": None}
    fields |= {"paged_kv": fields["paged_kv"] | {"head_dim": dim}} if hasattr(plain, "paged_kv") else own
    made: Descriptor[Any] = type(plain).model_validate(fields)
    return made


def _fp8(rng: random.Random, plain: Any) -> dict[str, Any]:
    cache = plain.paged_kv.model_dump() | {"dtype": rng.choice(("f8_e4m3", "f8_e5m2"))}
    return {
        "paged_kv": cache,
        "q_dtype": rng.choice(("f16", "bf16")),
        "kv_scale": rng.choice(("none", "tensor", "head", "head")),
    }


def _attention(rng: random.Random, plain: Any) -> dict[str, Any]:
    """Sinks, an fp8 cache, or both."""
    fp8 = hasattr(plain, "paged_kv") and rng.random() < 0.7
    return {"sinks": not fp8 or rng.random() < 0.4} | (_fp8(rng, plain) if fp8 else {})


VARIANTS = (
    alibi(1),
    sliding_window(100),
    document_mask(),
    soft_cap(5.0),
    Variant(
        logits=select(kv_pos % 5 < per_row("phase") + 2, 0.5 * score, score - exp2(minimum(score, 4.0))),
        mask=(kv_pos <= q_pos) | (per_key("shared") < 1),
        query=query * select(q_pos > 50, 1.25, 0.75) / (1.0 + abs(per_head("damping"))),
    ),
)


def _prefill_more(rng: random.Random, plain: Any) -> dict[str, Any]:
    """What all attentions may have, or a variant, a packed mask or both."""
    if rng.random() < 0.5:
        return _attention(rng, plain)
    fields = rng.choice(({"custom_mask": True}, {"variant": rng.choice(VARIANTS), "custom_mask": rng.random() < 0.4}))
    return fields | {"logits_soft_cap": 0.0}


def _ragged_more(rng: random.Random, plain: Any) -> dict[str, Any]:
    """The same, and heads whose v is not as wide as their k."""
    fields = _prefill_more(rng, plain)
    if rng.random() < 0.25:
        fields |= rng.choice(({"head_dim": 192, "head_dim_vo": 128},) * 3 + ({"head_dim_vo": 96},))
    return fields


def _cache(rng: random.Random, dtypes: tuple[str, ...], head_dims: tuple[int, ...], tokens: int) -> PagedKvCacheDescriptor:
    page_size = rng.choice((1, 2, 3, 5, 8, 16, 16, 32, 64, 100, 128, 256))
    return PagedKvCacheDescriptor.model_validate(
        {
            "num_total_pages": max(4, rng.randint(tokens // 8, tokens) // page_size),
            "page_size": page_size,
            "num_kv_heads": rng.choice((1, 1, 2, 3, 4)),
            "head_dim": rng.choice(head_dims),
            "dtype": rng.choice(dtypes),
            "layout": rng.choice(("HND", "NHD")),
        }
    )


def _scores(rng: random.Random, tokens: int) -> dict[str, Any]:
    """The fields that all attentions share."""
    return {
        "sm_scale": rng.choice((None, None, 0.05, 0.3)),
        "kv_split": rng.choice(("auto", "auto", "off", rng.choice((32, 100, 256, 1000)))),
        "window_left": rng.choice((-1, -1, 0, 17, rng.randint(1, tokens))),
        "logits_soft_cap": rng.choice((0.0, 0.0, 0.0, 30.0)),
        "return_lse": rng.random() < 0.8,
    }


def _prefill(rng: random.Random, tokens: int) -> Descriptor[Any]:
    cache = _cache(rng, ("f16", "bf16"), (64, 128, 256), tokens)
    return BatchPagedPrefillDescriptor(
        batch_size=rng.choice((1, 2, 3, 5, 9, 33)),
        total_num_rows=rng.choice((1, 2, 17, 63, 130, 300, 700)),
        num_qo_heads=cache.num_kv_heads * rng.choice(_GROUPS),
        causal=rng.random() < 0.6,
        paged_kv=cache,
        page_table=rng.choice(("csr", "block")),
        **_scores(rng, tokens),
    )


def _decode(rng: random.Random, tokens: int) -> Descriptor[Any]:
    cache = _cache(rng, ("f16", "bf16", "bf16", "f32"), (64, 128, 256), tokens)
    return BatchPagedDecodeDescriptor(
        batch_size=rng.choice((1, 2, 3, 7, 16, 40, 130)),
        num_qo_heads=cache.num_kv_heads * rng.choice(_GROUPS),
        paged_kv=cache,
        page_table=rng.choice(("csr", "block")),
        **(scores := _scores(rng, tokens)),
        # Half of the automatic splits have no bound that promises short contexts: those are cut in another way.
        max_kv_indices=rng.choice((None, 2**15)) if scores["kv_split"] == "auto" else None,
    )


def _ragged(rng: random.Random, tokens: int) -> Descriptor[Any]:
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
        **_scores(rng, tokens),
    )


def _append(rng: random.Random, tokens: int) -> Descriptor[Any]:
    cache = _cache(rng, ("f16", "bf16", "f32", "f8_e4m3", "f8_e5m2"), (64, 65, 128, 256), tokens)
    batch = rng.choice((1, 2, 5, 17))
    rows = rng.randint(0, max(0, cache.num_total_pages - batch) * cache.page_size // 4)
    return PagedKvAppendDescriptor(
        batch_size=batch, total_num_rows=rows, paged_kv=cache, page_table=rng.choice(("csr", "block"))
    )


def _merge(rng: random.Random, tokens: int) -> Descriptor[Any]:
    return MergeStatesDescriptor(
        num_states=rng.choice((1, 2, 3, 8, 40)),
        total_num_rows=rng.choice((1, 7, 64, 333)),
        num_heads=rng.choice((1, 3, 8, 32)),
        head_dim=rng.choice((64, 65, 80, 128, 256)),
        dtype=rng.choice(("f16", "bf16", "f32")),
    )


def _mla(rng: random.Random, tokens: int) -> Descriptor[Any]:
    page_size = rng.choice((1, 3, 16, 32, 64, 64, 128))
    pages = max(4, rng.randint(tokens // 8, tokens) // page_size)
    return BatchMlaDecodeDescriptor(
        batch_size=rng.choice((1, 2, 3, 7, 16, 40)),
        num_qo_heads=rng.choice((16, 16, 32, 64, 96, 128)),
        paged_kv=PagedLatentCacheDescriptor(
            num_total_pages=pages, page_size=page_size, dtype=rng.choice(("f16", "bf16", "bf16"))
        ),
        page_table=rng.choice(("csr", "block")),
        sm_scale=rng.choice((None, None, 0.1)),
        kv_split=rng.choice(("auto", "auto", "off", rng.choice((64, 100, 256)))),
        return_lse=rng.random() < 0.8,
    )


def _append_more(rng: random.Random, plain: Any) -> dict[str, Any]:
    """Rope, quantisation, or both."""
    rope, wide = rng.choice(("none", "interleaved", "half", "half")), ("f16", "bf16", "bf16", "f32")
    fields: dict[str, Any] = {"rope": rope, "paged_kv": plain.paged_kv.model_dump() | {"dtype": rng.choice(wide)}}
    if rope != "none":
        dim = plain.paged_kv.head_dim
        fields["rotary_dim"] = rng.choice((dim - dim % 2, dim - dim % 2, 32, 2))
    if rope == "none" or rng.random() < 0.6:
        fields["paged_kv"]["dtype"] = rng.choice(("f8_e4m3", "f8_e5m2"))
        fields |= {"new_dtype": rng.choice(wide), "kv_scale": rng.choice(("none", "tensor", "head"))}
    if rope != "none":
        fields["rope_dtype"] = rng.choice(("f32", "f32", "bf16", "f16"))
    return fields


def _latent(rng: random.Random, plain: Any) -> dict[str, Any]:
    """What an attention over latents may have besides."""
    return {"sinks": rng.random() < 0.5, "window_left": rng.choice((-1, 0, 40)), "logits_soft_cap": rng.choice((0.0, 30.0))}


_DRAW = dict(zip(OPS, (_prefill, _decode, _ragged, _append, _merge, _mla), strict=True))
_SPECIAL = {
    "paged_prefill": _prefill_more,
    "paged_decode": _attention,
    "ragged_prefill": _ragged_more,
    "paged_kv_append": _append_more,
    "mla_decode": _latent,
}
SPECIAL = tuple(_SPECIAL)
