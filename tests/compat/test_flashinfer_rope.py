"""FlashInfer's rotary functions against the formula in f64: all kinds of positions, tables, fp8 results and pages, and
refusals.
"""

import math

import pytest
import torch

import opfacade.compat.flashinfer as flashinfer
from opfacade.compat.flashinfer._rotary import rotations as _rotations
from opfacade.errors import ArgumentError, ArgumentTypeError, OpfacadeError, ShapeError, UnsupportedError

DIM, HEADS = 34, (3, 2)
POSITIONS = (0, 5, 1_000_003, 77, 4095)
LLAMA31 = {"rope_scale": 8, "rope_theta": 5e5, "low_freq_factor": 1, "high_freq_factor": 4, "old_context_len": 8192}
NAMES = [f"apply_{kind}rope{where}" for kind in ("", "llama31_") for where in ("", "_pos_ids")]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(29)


def qkv(dtype=torch.bfloat16):
    """q and k as views of one tensor."""
    whole = torch.randn(len(POSITIONS), sum(HEADS) + 2, DIM).to(dtype)
    return whole[:, : HEADS[0]], whole[:, HEADS[0] : sum(HEADS)]


def frequencies(dim, rope_scale=1.0, rope_theta=1e4, **llama31):
    found = []
    for pair in range(dim // 2):
        wave = rope_theta ** (-2 * pair / dim)
        length, share = 2 * math.pi / wave, 0.0
        if llama31:
            low, high = llama31["low_freq_factor"], llama31["high_freq_factor"]
            share = min(1.0, max(0.0, (llama31["old_context_len"] / length - low) / (high - low)))
        found.append((1 - share) * wave / rope_scale + share * wave)
    return torch.tensor(found, dtype=torch.float64)


def rotated(x, cosines, sines, interleave=False):
    """x rotated; cosines and sines: [rows, pairs] in f64."""
    x, dim = x.double(), 2 * cosines.shape[1]
    first, second = (x[..., 0:dim:2], x[..., 1:dim:2]) if interleave else (x[..., : dim // 2], x[..., dim // 2 : dim])
    c, s = cosines[:, None], sines[:, None]
    pairs = (first * c - second * s, second * c + first * s)
    made = torch.stack(pairs, -1).flatten(-2) if interleave else torch.cat(pairs, -1)
    return torch.cat([made, x[..., dim:]], -1)


def by_formula(x, positions, dim, interleave=False, **waves):
    angle = torch.tensor(positions, dtype=torch.float64)[:, None] * frequencies(dim, **waves)
    return rotated(x, angle.cos(), angle.sin(), interleave)


def near(got, want):
    torch.testing.assert_close(got.double(), want, rtol=torch.finfo(got.dtype).eps / 2, atol=1e-6)


def where(name):
    """The positions of a call, as its arguments: requests of 2 and 3 rows, or one position per row."""
    if name.endswith("pos_ids"):
        return POSITIONS, (torch.tensor(POSITIONS),)
    offsets = torch.tensor([900_001, 4], dtype=torch.int32)
    return (900_001, 900_002, 4, 5, 6), (torch.tensor([0, 2, 5], dtype=torch.int32), offsets)


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_rotations_by_position(name, interleave):
    (q, k), (positions, given) = qkv(), where(name)
    waves = LLAMA31 if "31" in name else {"rope_scale": 2, "rope_theta": 5e3}
    want = [by_formula(x, positions, 30, interleave, **waves) for x in (q, k)]
    numbers = {} if "31" in name else waves
    before = q.clone()
    found = getattr(flashinfer, name)(q, k, *given, 30, interleave, **numbers)
    for got, one in zip(found, want, strict=True):
        near(got, one)
    assert torch.equal(q, before)
    assert getattr(flashinfer.rope, f"{name}_inplace")(q, k, *given, 30, interleave, **numbers) is None
    for got, one in zip((q, k), found, strict=True):
        assert torch.equal(got, one)


def test_numbers_of_llama31_are_arguments():
    (q, k), positions = qkv(), torch.tensor(POSITIONS, dtype=torch.int32)
    numbers = {"rope_scale": 4, "rope_theta": 1e5, "low_freq_factor": 2, "high_freq_factor": 9, "old_context_len": 512}
    found = flashinfer.apply_llama31_rope_pos_ids(q, k, positions, None, False, *numbers.values())
    near(found[0], by_formula(q, POSITIONS, DIM, **numbers))
    near(found[1], by_formula(k, POSITIONS, DIM, **numbers))


def test_rows_of_no_request_stay():
    """An infinity would become NaN even if the angle is 0."""
    (q, k), indptr = qkv(), torch.tensor([0, 1, 1, 3], dtype=torch.int32)
    q[3:] = float("inf")
    before = q.clone()
    flashinfer.apply_rope_inplace(q, k, indptr, torch.tensor([7, 9, 3], dtype=torch.int32))
    near(q[:3], by_formula(before[:3], (7, 3, 4), DIM))
    assert torch.equal(q[3:], before[3:])


def test_far_positions_keep_their_digits():
    """Angles in f32 would be wrong by 0.03 at position one million."""
    (q, k), positions = qkv(dtype=torch.float32), torch.tensor(POSITIONS)
    found = flashinfer.apply_rope_pos_ids(q, k, positions)
    torch.testing.assert_close(found[0].double(), by_formula(q, POSITIONS, DIM), rtol=1e-6, atol=1e-6)


def table(rows=90, dim=30):
    """cos_sin_cache, and its cosines and sines in f64."""
    angle = torch.rand(rows, dim // 2) * 6
    cache = torch.cat([angle.cos(), angle.sin()], -1)
    return cache, cache.double().chunk(2, 1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("is_neox", [True, False])
def test_rotations_by_a_table(is_neox, dtype):
    cache, (cosines, sines) = table()
    positions = torch.tensor([3, 89, 0, 3, 40], dtype=dtype)
    wide = torch.randn(5, 8 * DIM).half()
    query, key = wide[:, : 3 * DIM], wide[:, 3 * DIM : 5 * DIM]
    at = positions.long()
    want = [rotated(x.unflatten(1, (-1, DIM)), cosines[at], sines[at], not is_neox).flatten(1) for x in (query, key)]
    found = flashinfer.apply_rope_with_cos_sin_cache(positions, query, key, DIM, cache, is_neox)
    for got, one in zip(found, want, strict=True):
        near(got, one)
    heads = flashinfer.apply_rope_with_cos_sin_cache(
        positions, *(x.unflatten(1, (-1, DIM)) for x in (query, key)), DIM, cache, is_neox
    )
    assert [x.shape for x in heads] == [(5, 3, DIM), (5, 2, DIM)]
    assert torch.equal(heads[0].flatten(1), found[0])
    rest = wide[:, 5 * DIM :].clone()
    flashinfer.apply_rope_with_cos_sin_cache_inplace(positions, query, key, DIM, cache, is_neox)
    assert torch.equal(query, found[0])
    assert torch.equal(key, found[1])
    assert torch.equal(wide[:, 5 * DIM :], rest)


def test_a_row_without_a_position_keeps_every_bit():
    cache, _ = table()
    query, key = torch.randn(2, 4, 2 * DIM).half()
    before = query.clone()
    flashinfer.apply_rope_with_cos_sin_cache_inplace(torch.tensor([5, -1, 7, -1]), query, key, DIM, cache)
    assert torch.equal(query[1::2], before[1::2])
    assert not torch.equal(query[::2], before[::2])


def test_facts_that_were_seen_make_no_descriptor(monkeypatch):
    (q, k), positions = qkv(), torch.tensor(POSITIONS)
    flashinfer.apply_rope_pos_ids(q, k, positions, rope_theta=77.0)
    made = []
    for name in ("RotaryDescriptor", "MapDescriptor", "rotary_frequencies"):
        monkeypatch.setattr(_rotations, name, lambda *a, **fields: made.append(fields))
    flashinfer.apply_rope_pos_ids(q, k, positions + 1, rope_theta=77.0)
    assert made == []


def saturated(x, dtype):
    largest = torch.finfo(dtype).max
    return x.float().clamp(-largest, largest).to(dtype).float()


def parts(rows=5, latent=False):
    """q_rope, k_rope, q_nope, k_nope."""
    q, k = torch.randn(rows, 3, 64).half(), torch.randn(rows, 2, 64).half()
    k = k[:, 0] if latent else k
    return q[..., :32], k[..., :32], q[..., 32:], k[..., 32:]


def wanted(given, at, cosines, sines, scales, dtype):
    """fp8 of q_rope, k_rope, q_nope and k_nope; pairs are adjacent elements."""
    q, k, q_nope, k_nope = given
    heads = k[:, None] if k.dim() == 2 else k
    key = rotated(heads, cosines[at], sines[at], True).view(k.shape) * scales[1]
    made = (rotated(q, cosines[at], sines[at], True) * scales[0], key, q_nope * scales[0], k_nope * scales[1])
    return [saturated(one, dtype) for one in made]


def nearly_equal(got, want):
    """At most one element in a hundred is the adjacent fp8 number: f32 arithmetic may fall on the other side of a midpoint."""
    assert got.shape == want.shape
    torch.testing.assert_close(got.float(), want, rtol=0.26, atol=2e-5)
    assert (got.float() != want).float().mean() < 0.01 if want.numel() else True


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("latent", [False, True])
def test_rotations_into_fp8(latent, dtype):
    (cache, halves), positions, given = table(dim=32), torch.tensor([3, 89, 0, 3, 40]), parts(latent=latent)
    want = wanted(given, positions, *halves, (100.0, 0.5), dtype)
    scales = {"quant_scale_q": 100.0, "quant_scale_kv": 0.5, "is_neox": False}
    found = flashinfer.rope.rope_quantize_fp8(*given, cache, positions.int(), quantize_dtype=dtype, **scales)
    outs = [torch.empty(*x.shape[:-1], 70, dtype=dtype)[..., 3 : 3 + x.shape[-1]] for x in given]
    again = flashinfer.rope.mla_rope_quantize_fp8(*given, cache, positions, False, None, 100.0, 0.5, *outs)
    for got, one, out, same in zip(found, want, outs, again, strict=True):
        assert got.dtype == dtype
        assert same is out
        nearly_equal(got, one)
        assert torch.equal(same.float(), got.float())


def test_parts_without_a_rest_are_empty():
    cache, _ = table(dim=32)
    q, k, _, _ = parts()
    found = flashinfer.rope.rope_quantize_fp8(q, k, None, None, cache, torch.arange(5))
    assert [tuple(x.shape) for x in found] == [(5, 3, 32), (5, 2, 32), (5, 3, 0), (5, 2, 0)]


def pages(latent, layout):
    """3 pages of 4 tokens of NaN: K and V, or the latent pools."""
    shape = (3, 4, 32) if latent else (3, 4, 2, 64) if layout == "NHD" else (3, 2, 4, 64)
    return tuple(torch.full(shape, float("nan")).to(torch.float8_e4m3fn) for _ in range(2))


@pytest.mark.parametrize(("latent", "layout"), [(False, "NHD"), (False, "HND"), (True, "NHD")])
def test_rotations_into_a_paged_cache(latent, layout):
    (cache, halves), at, given = table(dim=32), torch.tensor([3, 89, 0, 3, 40]), parts(latent=latent)
    v = None if latent else torch.randn(5, 2, 64).half()
    pools = pages(latent, layout)
    slots = torch.tensor([[2, 1], [2, 2], [0, 3], [1, 0]])  # page and token of all rows except the last, which is padding
    tables = (torch.tensor([2, 0, 1]), torch.tensor([0, 1, 3]), torch.tensor([0, 0, 1, 1, -1]), torch.tensor([1, 2, 3, 4, 0]))
    found = flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache(
        *given, v, cache, at, pools, *tables, False, None, 2.0, 0.5, 4, layout
    )
    q, k, q_nope, k_nope = wanted(given, at, *halves, (2.0, 0.5), torch.float8_e4m3fn)
    nearly_equal(found[0], q)
    nearly_equal(found[1], q_nope)
    rows = [pool.float() if latent or layout == "NHD" else pool.float().transpose(1, 2) for pool in pools]
    stored = [k_nope, k] if latent else [torch.cat([k, k_nope], -1), saturated(v * 0.5, torch.float8_e4m3fn)]
    for pool, want in zip(rows, stored, strict=True):
        nearly_equal(pool[slots[:, 0], slots[:, 1]], want[:4])
        pool[slots[:, 0], slots[:, 1]] = float("nan")
        assert pool.isnan().all()


def fp8(call, **more):
    q, k, q_nope, k_nope = parts()
    given = {
        "q_rope": q,
        "k_rope": k,
        "q_nope": q_nope,
        "k_nope": k_nope,
        "cos_sin_cache": table()[0],
        "pos_ids": torch.arange(5),
    }
    return getattr(flashinfer.rope, call)(**given | more)


def into_pages(**more):
    i32 = torch.zeros(5, dtype=torch.int32)
    given = {"v": torch.randn(5, 2, 64).half(), "paged_kv_cache": pages(False, "NHD"), "page_size": 4}
    given |= {"kv_indices": i32[:1], "kv_indptr": i32[:2], "batch_indices": i32, "positions": i32}
    return fp8("rope_quantize_fp8_append_paged_kv_cache", **given | more)


@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda q, k, at: flashinfer.apply_rope_pos_ids(q, k, at.float()), ArgumentError, "pos_ids expected dtype int32"),
        (lambda q, k, at: flashinfer.apply_rope_pos_ids(q, k, at[None]), ShapeError, r"pos_ids expected \[nnz\]"),
        (lambda q, k, at: flashinfer.apply_rope_pos_ids(q, k, at[:-1]), ShapeError, "positions|cos_sin_cache"),
        (lambda q, k, at: flashinfer.apply_rope_pos_ids(q, k, at, 7), ArgumentError, "rotary_dim expected an even"),
        (lambda q, k, at: flashinfer.apply_rope_pos_ids(q, k, at, 36), OpfacadeError, "rotary_dim expected"),
        (lambda q, k, at: flashinfer.apply_rope_pos_ids(q[0], k, at), ShapeError, "q expected"),
        (lambda q, k, at: flashinfer.apply_rope_pos_ids(q.int(), k, at), UnsupportedError, "q expected .*float32"),
        (lambda q, k, at: flashinfer.apply_rope_pos_ids(q, k.float(), at), OpfacadeError, "k"),
        (lambda q, k, at: flashinfer.apply_rope(None, k, at, at), ArgumentTypeError, "q expected a tensor"),
        (lambda q, k, at: flashinfer.apply_rope_pos_ids(q, None, at), ArgumentTypeError, "k expected a tensor"),
        (lambda q, k, at: flashinfer.apply_rope(q, k, at, at), ShapeError, r"offsets expected \[batch=4\]"),
        (lambda q, k, at: flashinfer.apply_rope_inplace(q, k, None, at), ArgumentTypeError, "indptr expected a tensor"),
        (lambda q, k, at: flashinfer.apply_rope_with_cos_sin_cache(at, q[:, 0], k[:, 0], 33, table()[0]), ShapeError, "query"),
        (lambda q, k, at: flashinfer.apply_rope_with_cos_sin_cache(at, q, k, DIM, at), ShapeError, "cos_sin_cache"),
        (lambda q, k, at: fp8("rope_quantize_fp8", backend="triton"), ArgumentError, "backend"),
        (lambda q, k, at: fp8("rope_quantize_fp8", quantize_dtype=torch.int8), UnsupportedError, "quantize_dtype"),
        (lambda q, k, at: fp8("mla_rope_quantize_fp8", cos_sin_cache=table(9, 28)[0]), ShapeError, "cos_sin_cache"),
        (lambda q, k, at: fp8("rope_quantize_fp8", q_rope_out=q.to(torch.float8_e4m3fn)), ShapeError, "an output"),
        (lambda q, k, at: into_pages(v=None), ArgumentError, "v expected a tensor"),
        (lambda q, k, at: into_pages(page_size=5), ShapeError, "paged_kv_cache expected 5 tokens"),
        (lambda q, k, at: into_pages(kv_layout="HND"), ShapeError, "paged_kv_cache expected 4 tokens"),
    ],
)  # fmt: skip
def test_refusals_name_the_argument_and_nothing_is_written(call, kind, match):
    q, k = qkv()
    before = q.clone()
    with pytest.raises(kind, match=match):
        call(q, k, torch.tensor(POSITIONS))
    assert torch.equal(q, before)
