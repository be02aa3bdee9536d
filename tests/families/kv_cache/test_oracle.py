"""The error check of append detects the smallest possible error in a slot, a copied row, an angle or a quotient."""

import math

import pytest
import torch

from opfacade.testing import numerics
from tests.support.problems import append, cache, cloned, on_reference


def ran(**fields):
    """(descriptor, args after a run, SKU, pools before it) of two requests, the second of which has two new rows."""
    descriptor, args = append([1, 2], [5, 9], paged_kv=cache(**fields.pop("paged_kv")), **fields)
    before = {name: getattr(args, name).clone() for name in ("k_data", "v_data")}
    plan = on_reference(descriptor)
    plan.run(args)
    return descriptor, args, plan.sku, before


def worst(descriptor, args, sku, before):
    return numerics.check(descriptor, args, sku, before=before).worst


def new_slot(args, descriptor, pool):
    """A view [heads, dim] of the last new row of the last request."""
    size, length = descriptor.paged_kv.page_size, 9
    page = int(args.kv_indices[int(args.kv_indptr[2]) - 1])
    return pool[page, (length - 1) % size]


COPY = {"paged_kv": {"dtype": "f16"}}


@pytest.mark.parametrize("name", ["k_data", "v_data"])
def test_a_wrong_bit_in_a_copied_row_is_detected(name):
    descriptor, args, sku, before = ran(**COPY)
    assert worst(descriptor, args, sku, before) == 0
    new_slot(args, descriptor, getattr(args, name)).view(torch.int16)[-1, -1] ^= 1
    assert worst(descriptor, args, sku, before) == math.inf


@pytest.mark.parametrize("name", ["k_data", "v_data"])
def test_a_write_to_another_page_is_detected(name):
    descriptor, args, sku, before = ran(**COPY)
    used = set(args.kv_indices[: int(args.kv_indptr[2])].tolist())
    free = next(page for page in range(descriptor.paged_kv.num_total_pages) if page not in used)
    getattr(args, name)[free].view(torch.int16)[0, 0, 0] ^= 1
    assert worst(descriptor, args, sku, before) == math.inf


@pytest.mark.parametrize("rope", ["half", "interleaved"])
@pytest.mark.parametrize("at", [0, 7])
def test_an_error_of_a_ten_thousandth_in_a_rotated_element_is_detected(rope, at):
    """The error is far above the rounding errors of f32."""
    descriptor, args, sku, before = ran(rope=rope, paged_kv={"dtype": "f32"})
    assert worst(descriptor, args, sku, before) <= 1
    new_slot(args, descriptor, args.k_data)[:, at] *= 1.0001
    assert worst(descriptor, args, sku, before) > 1


@pytest.mark.parametrize("name", ["k", "v"])
def test_an_error_of_a_ten_thousandth_next_to_a_tie_is_detected(name):
    """1.0625 is halfway between two numbers of e4m3; f32 rounding errors are far below a ten-thousandth."""
    fields = {"new_dtype": "f32", "kv_scale": "tensor", "paged_kv": {"dtype": "f8_e4m3"}}
    descriptor, args = append([1, 2], [5, 9], **fields | {"paged_kv": cache(dtype="f8_e4m3")})
    for scale in (args.k_scale, args.v_scale):
        scale.fill_(1.0)
    getattr(args, f"{name}_new")[-1].fill_(1.0625 * 1.0001)
    before = {pool: getattr(args, pool).clone() for pool in ("k_data", "v_data")}
    plan = on_reference(descriptor)
    right = cloned(args)
    plan.run(right)
    slot = new_slot(right, descriptor, getattr(right, f"{name}_data"))
    assert slot.float().unique().tolist() == [1.125]
    assert worst(descriptor, right, plan.sku, before) <= 1
    slot[0, 0] = 1.0
    assert worst(descriptor, right, plan.sku, before) > 1


@pytest.mark.parametrize("rope", ["half", "interleaved"])
def test_the_reference_rotates_f32_rows_in_f64_and_rounds_once(rope):
    descriptor, args, _, _ = ran(rope=rope, paged_kv={"dtype": "f32"})
    x, angles = args.k_new[-1].double(), args.cos_sin_cache[8].double()
    count = angles.numel() // 2
    pairs = [(2 * i, 2 * i + 1) if rope == "interleaved" else (i, i + count) for i in range(count)]
    want = x.clone()
    for i, (a, b) in enumerate(pairs):
        cos, sin = angles[i], angles[count + i]
        want[:, a], want[:, b] = x[:, a] * cos - x[:, b] * sin, x[:, b] * cos + x[:, a] * sin
    assert torch.equal(new_slot(args, descriptor, args.k_data), want.float())
