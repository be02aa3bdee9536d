"""Random fields shared by the problems of several families."""

from __future__ import annotations

import random
from typing import Any

from opfacade.plans._attention.paging import PagedKvCacheDescriptor


def cache(rng: random.Random, dtypes: tuple[str, ...], head_dims: tuple[int, ...], tokens: int) -> PagedKvCacheDescriptor:
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


def scores(rng: random.Random, tokens: int) -> dict[str, Any]:
    """Random common fields of attention."""
    return {
        "sm_scale": rng.choice((None, None, 0.05, 0.3)),
        "kv_split": rng.choice(("auto", "auto", "off", rng.choice((32, 100, 256, 1000)))),
        "window_left": rng.choice((-1, -1, 0, 17, rng.randint(1, tokens))),
        "logits_soft_cap": rng.choice((0.0, 0.0, 0.0, 30.0)),
        "return_lse": rng.random() < 0.8,
    }


def small_cache(rng: random.Random) -> PagedKvCacheDescriptor:
    """A random small pool."""
    return PagedKvCacheDescriptor.model_validate(
        {
            "num_kv_heads": rng.choice((1, 1, 2)),
            "head_dim": rng.choice((8, 16, 64)),
            "num_total_pages": rng.randint(6, 20),
            "page_size": rng.choice((1, 2, 3, 8)),
            "dtype": rng.choice(("f16", "bf16", "f32")),
            "layout": rng.choice(("HND", "NHD")),
        }
    )


def small_scores(rng: random.Random, kv_heads: int) -> dict[str, Any]:
    return {
        "num_qo_heads": kv_heads * rng.choice((1, 2, 3)),
        "kv_split": rng.choice(("auto", "off", 32)),
        "window_left": rng.choice((-1, -1, 0, 5)),
        "logits_soft_cap": rng.choice((0.0, 0.0, 30.0)),
        "return_lse": rng.random() < 0.8,
        "sinks": rng.random() < 0.3,
    }


def case_cache(
    dim: int, dtype: str, page_size: int, layout: str, kv_heads: int = 2, tokens: int = 3000
) -> PagedKvCacheDescriptor:
    sizes = {"num_total_pages": tokens // page_size, "page_size": page_size, "num_kv_heads": kv_heads, "head_dim": dim}
    return PagedKvCacheDescriptor.model_validate(sizes | {"dtype": dtype, "layout": layout})
