"""Harness of the append to a paged KV cache."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor
from opfacade.core.dtypes import ITEMSIZE, torch_dtype
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from opfacade.testing.bounds import Report
from opfacade.testing.families._problems import cache, case_cache, small_cache
from opfacade.testing.families._requests import RequestsHarness
from opfacade.testing.families.attention.inputs import positive
from opfacade.testing.families.kv_cache import oracle as append_oracle
from opfacade.testing.harness import Amount, Harness, HasLengths, Ran, Sample
from opfacade.testing.inputs import Draw

if TYPE_CHECKING:
    from torch import Tensor


class AppendHarness(RequestsHarness):
    """Checks the new rows; if `before` has the pools, also that nothing else changed."""

    rows, rows_are_keys = "append_indptr", True
    has_special = True

    def draw(self, op: str, rng: random.Random, tokens: int) -> Descriptor[Any]:
        pool = cache(rng, ("f16", "bf16", "f32", "f8_e4m3", "f8_e5m2"), (64, 65, 128, 256), tokens)
        batch = rng.choice((1, 2, 5, 17))
        rows = rng.randint(0, max(0, pool.num_total_pages - batch) * pool.page_size // 4)
        return PagedKvAppendDescriptor(
            batch_size=batch, total_num_rows=rows, paged_kv=pool, page_table=rng.choice(("csr", "block"))
        )

    def small(self, op: str, rng: random.Random) -> Descriptor[Any]:
        pool = small_cache(rng)
        more = _small_more(rng, pool.dtype)
        stored = pool.model_dump() | ({"dtype": "f8_e4m3"} if "new_dtype" in more else {})
        fields = {"paged_kv": stored, "page_table": rng.choice(("csr", "block")), "total_num_rows": rng.randint(0, 5)}
        return PagedKvAppendDescriptor.model_validate({"batch_size": 1, **fields, **more})

    def special(self, rng: random.Random, plain: Any) -> dict[str, Any]:
        """Random fields: rope, quantisation, or both."""
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

    def cases(self, op: str) -> dict[str, Any]:
        return {
            "append-csr": PagedKvAppendDescriptor(
                batch_size=5, total_num_rows=300, paged_kv=case_cache(128, "bf16", 16, "HND")
            ),
            "append-block-odd": PagedKvAppendDescriptor(
                batch_size=5, total_num_rows=77, paged_kv=case_cache(65, "f8_e4m3", 3, "NHD", 1, 600), page_table="block"
            ),
            "append-f32-odd": PagedKvAppendDescriptor(
                batch_size=3, total_num_rows=50, paged_kv=case_cache(65, "f32", 5, "HND", 2, 600)
            ),
            "append-many-heads": PagedKvAppendDescriptor(
                batch_size=3, total_num_rows=40, paged_kv=case_cache(64, "f16", 8, "NHD", 17, 600)
            ),
            "append-half-fp8-head": PagedKvAppendDescriptor(
                batch_size=4,
                total_num_rows=90,
                paged_kv=case_cache(128, "f8_e4m3", 16, "HND"),
                new_dtype="bf16",
                kv_scale="head",
                rope="half",
            ),
            "append-half-bf16-angles": PagedKvAppendDescriptor(
                batch_size=4,
                total_num_rows=90,
                paged_kv=case_cache(128, "bf16", 16, "NHD", 3),
                page_table="block",
                rope="half",
                rope_dtype="bf16",
            ),
            "append-half-odd-bf16-angles": PagedKvAppendDescriptor(
                batch_size=3,
                total_num_rows=50,
                paged_kv=case_cache(65, "f32", 8, "NHD", 2, 600),
                page_table="block",
                rope="half",
                rope_dtype="bf16",
                rotary_dim=64,
            ),
            "append-interleaved-odd": PagedKvAppendDescriptor(
                batch_size=3,
                total_num_rows=50,
                paged_kv=case_cache(65, "f16", 5, "NHD", 2, 600),
                page_table="block",
                rope="interleaved",
                rotary_dim=24,
            ),
        }

    def request_inputs(self, draw: Draw, requests: Sequence[tuple[int, int]]) -> None:
        import torch

        if draw.descriptor.rotated:
            draw.values["cos_sin_cache"] = _angles(draw, max([1, *(keys for _, keys in requests)]))
        positive(draw, ("k_scale", "v_scale"))
        if draw.descriptor.quantises:  # some numbers exceed the largest fp8 number
            for name in ("k_new", "v_new"):
                new = draw.values[name]
                draw.values[name] = torch.where(draw.uniform(new.shape) < 0.01, new * 2000, new)

    def judge(self, ran: Ran, sample: Sample) -> Report:
        return append_oracle.check(ran.descriptor, ran.args, ran.before)

    def amount(self, descriptor: PagedKvAppendDescriptor, lengths: HasLengths) -> Amount:
        cache = descriptor.paged_kv
        moved = ITEMSIZE[descriptor.row_dtype] + ITEMSIZE[cache.dtype]
        return Amount(2.0 * descriptor.total_num_rows * cache.num_kv_heads * cache.head_dim * moved, 0.0)


def _angles(draw: Draw, positions: int) -> Tensor:
    """Cosines and sines as models have them; rows past the last position are NaN."""
    import torch

    half = draw.descriptor.rotated // 2
    speed = 10000.0 ** (-torch.arange(half, device=draw.device) / half)
    angle = torch.arange(positions, device=draw.device)[:, None] * speed
    past = torch.full((draw.rng.randint(0, 3), 2 * half), float("nan"), device=draw.device)
    return torch.cat([torch.cat([angle.cos(), angle.sin()], -1), past]).to(torch_dtype(draw.descriptor.rope_dtype))


def _small_more(rng: random.Random, dtype: str) -> dict[str, Any]:
    """Random fields: rows of `dtype` are rotated, quantised, or both."""
    found: dict[str, Any] = {"rope": rng.choice(("none", "none", "half", "interleaved"))}
    if found["rope"] != "none":
        found["rope_dtype"] = rng.choice(("f32", "bf16", "f16"))
    quantised = {"new_dtype": dtype, "kv_scale": "head"}
    return found | (quantised if rng.random() < 0.3 else {})


HARNESSES: dict[str, Harness] = {"paged_kv_append": AppendHarness()}
