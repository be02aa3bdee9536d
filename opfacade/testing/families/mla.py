"""Harness of latent attention, which is attention with one KV head whose rows are both key and value."""

from __future__ import annotations

import random
from typing import Any

from opfacade.core.descriptor import Descriptor
from opfacade.plans._attention.paging import PagedLatentCacheDescriptor
from opfacade.plans.mla import BatchMlaDecodeDescriptor
from opfacade.testing.families._problems import small_cache, small_scores
from opfacade.testing.families.attention import AttentionHarness, Draws
from opfacade.testing.harness import Harness


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


def _latent(rng: random.Random, plain: object) -> dict[str, Any]:
    """Random optional fields of latent attention."""
    found = {"sinks": rng.random() < 0.5, "window_left": rng.choice((-1, 0, 40)), "logits_soft_cap": rng.choice((0.0, 30.0))}
    return found | {"q_len": rng.choice((1, 2, 4, 9)), "causal": rng.random() < 0.8}


def _small(rng: random.Random) -> Descriptor[Any]:
    like = small_cache(rng)
    sizes = {"num_total_pages": like.num_total_pages, "page_size": like.page_size, "latent_dim": like.head_dim, "rope_dim": 8}
    return BatchMlaDecodeDescriptor(
        batch_size=rng.randint(1, 4),
        paged_kv=PagedLatentCacheDescriptor.model_validate(sizes | {"dtype": like.dtype}),
        page_table=rng.choice(("csr", "block")),
        sm_scale=0.3,
        **small_scores(rng, like.num_kv_heads),
        q_len=rng.choice((1, 1, 2, 3)),
    )


def _case(heads: int, dtype: str, page_size: int, **more: object) -> BatchMlaDecodeDescriptor:
    cache = PagedLatentCacheDescriptor(num_total_pages=1200 // page_size, page_size=page_size, dtype=dtype)
    return BatchMlaDecodeDescriptor(batch_size=5, num_qo_heads=heads, paged_kv=cache, **more)


class LatentHarness(AttentionHarness):
    def cases(self, op: str) -> dict[str, Any]:
        return {
            "mla-auto": _case(16, "bf16", 64),
            "mla-fixed-wide-block": _case(128, "f16", 16, kv_split=128, page_table="block"),
            "mla-rows": _case(16, "bf16", 64, q_len=5, window_left=400),
            "mla-off-odd-window-cap-sinks": _case(
                24, "bf16", 5, kv_split="off", window_left=300, logits_soft_cap=30.0, sinks=True
            ),
        }


HARNESSES: dict[str, Harness] = {"mla_decode": LatentHarness(Draws(_mla, _small, _latent))}
