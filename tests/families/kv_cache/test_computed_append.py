"""Append that rotates or quantises: every stored number is the nearest to the exact one, checked by a separate loop."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.errors import DescriptorError, IndexDataError
from opfacade.select.selection import survey
from opfacade.testing import inputs, numerics, problems
from tests.support import naive_attention as naive
from tests.support.problems import DTYPES, append, bits, cache, cloned, i32, on_reference, run

FORMS = [
    {"new_dtype": "bf16", "paged_kv": {"dtype": "f8_e4m3"}},
    {"new_dtype": "f32", "kv_scale": "tensor", "paged_kv": {"dtype": "f8_e5m2"}},
    {"new_dtype": "f16", "kv_scale": "head", "paged_kv": {"dtype": "f8_e4m3"}},
    {"rope": "half", "paged_kv": {"dtype": "bf16"}},
    {"rope": "interleaved", "rotary_dim": 6, "paged_kv": {"dtype": "f16"}},
    {"rope": "half", "rotary_dim": 4, "paged_kv": {"dtype": "f32"}},
    {"rope": "interleaved", "new_dtype": "f16", "kv_scale": "head", "paged_kv": {"dtype": "f8_e4m3"}},
    {"rope": "half", "rotary_dim": 2, "new_dtype": "bf16", "kv_scale": "tensor", "paged_kv": {"dtype": "f8_e5m2"}},
    {"rope": "half", "rope_dtype": "bf16", "paged_kv": {"dtype": "bf16"}},
    {"rope": "interleaved", "rope_dtype": "f16", "new_dtype": "f32", "kv_scale": "tensor", "paged_kv": {"dtype": "f8_e4m3"}},
]
IDS = ["-".join(str(v) for k, v in form.items() if k != "paged_kv") for form in FORMS]


def made(form, new_lens=(4, 5, 0), kv_lens=(6, 9, 3), **more):
    fields = form | more
    return append(list(new_lens), list(kv_lens), **fields | {"paged_kv": cache(**fields["paged_kv"])})


def turned(row, angles, rope):
    """One head's row, rotated by complex multiplication of Python floats."""
    count = len(angles) // 2
    out = list(row)
    for i in range(count):
        a, b = (2 * i, 2 * i + 1) if rope == "interleaved" else (i, i + count)
        z = complex(row[a], row[b]) * complex(angles[i], angles[count + i])
        out[a], out[b] = z.real, z.imag
    return out


def numbers_of(dtype):
    """All finite numbers of a format of 8 or 16 bits, in ascending order."""
    kind = torch.uint8 if DTYPES[dtype].itemsize == 1 else torch.int16
    every = torch.arange(2 ** (8 * DTYPES[dtype].itemsize)).to(torch.int32).to(kind).view(DTYPES[dtype]).double()
    return every[every.isfinite()].unique()


def assert_nearest(got, want, dtype):
    """No number of the format is nearer to `want`, up to f32 errors in computing it; beyond the largest number, the largest."""
    if dtype == "f32":
        assert abs(got - want) <= 2e-7 * (1 + abs(want))
        return
    numbers = NUMBERS.setdefault(dtype, numbers_of(dtype))
    best = (numbers - want).abs().min()
    assert abs(got - want) <= best + 1e-6 * (1 + abs(want)), (got, want)


NUMBERS = {}


@pytest.mark.parametrize("form", FORMS, ids=IDS)
@pytest.mark.parametrize("page_table", ["csr", "block"])
def test_every_new_element_is_the_nearest_number_and_no_other_element_changes(form, page_table):
    descriptor, args = made(form, page_table=page_table, strided=page_table == "csr")
    before, layout, dtype = cloned(args), descriptor.paged_kv.layout, descriptor.paged_kv.dtype
    run((descriptor, args))
    indptr = args.append_indptr.tolist()
    for name in ("k", "v"):
        pool, old, new = (
            getattr(a, n).double() for a, n in ((args, f"{name}_data"), (before, f"{name}_data"), (args, f"{name}_new"))
        )
        scale = getattr(args, f"{name}_scale")
        fresh = set()
        for b, tokens in enumerate(naive.locations(args, descriptor.paged_kv.page_size)):
            count = indptr[b + 1] - indptr[b]
            for i in range(count):
                position = len(tokens) - count + i
                fresh.add(tokens[position])
                for head in range(new.shape[1]):
                    row = new[indptr[b] + i, head].tolist()
                    if name == "k" and args.cos_sin_cache is not None:
                        row = turned(row, args.cos_sin_cache[position].tolist(), descriptor.rope)
                    factor = 1.0 if scale is None else float(scale[head % scale.numel()])
                    for x, y in zip(naive.slot(pool, layout, *tokens[position])[head].tolist(), row, strict=True):
                        assert_nearest(x, y / factor, dtype)
        for page in range(pool.shape[0]):
            for token in range(descriptor.paged_kv.page_size):
                if (page, token) not in fresh:
                    left, right = (naive.slot(p, layout, page, token) for p in (pool, old))
                    assert torch.equal(left.nan_to_num(7.0), right.nan_to_num(7.0))


def test_a_quotient_beyond_the_largest_fp8_number_saturates_and_nan_stays_nan():
    for dtype, most in (("f8_e4m3", 448.0), ("f8_e5m2", 57344.0)):
        descriptor, args = append([4], [4], paged_kv=cache(dtype=dtype), new_dtype="f32", kv_scale="tensor")
        args.k_scale[:] = 0.5
        args.k_new[0, 0, :6] = torch.tensor([1e6, -1e6, math.inf, -math.inf, math.nan, 1.0])
        run((descriptor, args))
        stored = args.k_data[naive.locations(args, 4)[0][0]][0].float()
        assert stored[:4].tolist() == [most, -most, most, -most]
        assert math.isnan(stored[4])
        assert stored[5] == 2.0


@pytest.mark.parametrize("rope", ["half", "interleaved"])
def test_v_and_elements_that_rope_does_not_rotate_are_copied_bit_for_bit(rope):
    descriptor, args = append([5], [9], paged_kv=cache(dtype="bf16"), rope=rope, rotary_dim=4)
    run((descriptor, args))
    places = naive.locations(args, 4)[0][4:]
    for i, place in enumerate(places):
        assert torch.equal(bits(args.v_data[place]), bits(args.v_new[i]))
        assert torch.equal(bits(args.k_data[place][:, 4:]), bits(args.k_new[i, :, 4:]))
        assert not torch.equal(args.k_data[place][:, :4], args.k_new[i, :, :4])


def test_scores_with_rope_depend_only_on_the_distance():
    """The K rows are equal, and the test rotates q itself: equal distances give equal scores."""
    descriptor, args = append([9], [9], paged_kv=cache(dtype="f32", num_kv_heads=1, head_dim=4), rope="half")
    angle = torch.arange(9)[:, None] * torch.tensor([1.0, 0.1])
    args = replace(args, cos_sin_cache=torch.cat([angle.cos(), angle.sin()], -1))
    args.k_new[:] = torch.tensor([0.3, -1.0, 0.7, 0.2])
    run((descriptor, args))
    k = torch.stack([args.k_data[place][0] for place in naive.locations(args, 4)[0]]).double()
    scores = k @ k.T
    for distance in range(5):
        diagonal = scores.diagonal(distance)
        assert (diagonal - diagonal[0]).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"new_dtype": "f32"}, "new_dtype expected the dtype of the cache, f16, got 'f32'"),
        ({"new_dtype": "f8_e5m2", "paged_kv": {"dtype": "f8_e4m3"}}, "new_dtype expected the dtype of the cache, f8_e4m3"),
        ({"kv_scale": "head"}, "kv_scale expected 'none' for f16 rows"),
        (
            {"kv_scale": "head", "paged_kv": {"dtype": "f8_e4m3"}},
            "f8_e4m3 rows in a f8_e4m3 cache, got 'head'. .*: set new_dtype, such",
        ),
        ({"rotary_dim": 4}, "rotary_dim expected None without a rope, got 4"),
        ({"rope": "half", "rotary_dim": 5}, "rotary_dim expected an even number, .* got 5"),
        ({"rope": "half", "rotary_dim": 10}, "at most head_dim=8"),
        (
            {"rope": "half", "paged_kv": {"dtype": "f8_e4m3"}},
            "rope expected 'none' for new rows of f8_e4m3, got 'half'. .*new_dtype='bf16'",
        ),
        ({"rope_dtype": "bf16"}, "rope_dtype expected 'f32' without a rope, got 'bf16'"),
        ({"rope": "half", "rope_dtype": "f8_e4m3"}, "'f32', 'bf16' or 'f16'"),
        ({"rope": "neox"}, "'interleaved' or 'half', got 'neox'. Use 'half'."),
        ({"rope": "GPT_J"}, "Use 'interleaved'."),
        ({"rope": True}, "'interleaved' or 'half', got True. .OPF-D002"),
    ],
)
def test_contradictory_fields_are_refused(fields, said):
    with pytest.raises(DescriptorError, match=said.replace("(", "\\(")):
        made({"paged_kv": {}} | fields)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"cos_sin_cache": None}, "OPF-A002"),
        ({"cos_sin_cache": torch.zeros(9, 4)}, "OPF-A011"),
        ({"cos_sin_cache": torch.zeros(9, 8, dtype=torch.bfloat16)}, "OPF-A010"),
        ({"cos_sin_cache": torch.zeros(9, 8, dtype=torch.float16)}, "OPF-A010"),
        ({"k_new": torch.zeros(9, 2, 8, dtype=torch.float8_e4m3fn)}, "OPF-A010"),
        ({"v_scale": torch.ones(3)}, "OPF-A011"),
    ],
)
def test_an_operand_of_a_wrong_shape_or_dtype_is_refused(change, code):
    descriptor, args = made(FORMS[6])
    [issue] = on_reference(descriptor).can_implement(replace(args, **change)).issues
    assert (issue.code, issue.argument) == (code, next(iter(change)))


@pytest.mark.parametrize("level", ["metadata", "full"])
@pytest.mark.parametrize(("page_table", "name"), [("csr", "last_page_len"), ("block", "kv_lens")])
def test_a_position_beyond_the_angle_table_is_refused_before_anything_is_written(monkeypatch, level, page_table, name):
    monkeypatch.setenv("OPFACADE_VALIDATE", level)
    descriptor, args = made(FORMS[3], page_table=page_table)
    before = cloned(args)
    with pytest.raises(IndexDataError, match=rf"{name}\[1\] expected a length in the 8 positions of cos_sin_cache, got 9"):
        Plan._select(descriptor, Preference(backend="reference"), Target.cpu()).run(
            replace(args, cos_sin_cache=args.cos_sin_cache[:8])
        )
    assert torch.equal(bits(args.k_data), bits(before.k_data))


def test_the_angle_table_may_be_shorter_than_requests_without_new_rows():
    descriptor, args = append([0, 2], [9, 2], paged_kv=cache(dtype="bf16"), rope="half")
    run((descriptor, replace(args, cos_sin_cache=args.cos_sin_cache[:2])))


def test_rope_and_quantisation_are_in_the_sku_and_a_plain_append_stays_exact():
    skus = [on_reference(made(form)[0]).sku for form in FORMS]
    assert len({sku.id for sku in skus}) == len(FORMS)
    assert {sku.precision_guarantee.error_model.id for sku in skus} == {"append-f32"}
    plain, _ = append([1], [1])
    assert on_reference(plain).sku.precision_guarantee.error_model.id == "exact"
    assert not {"rope", "new_dtype", "kv_scale", "rotary_dim", "rope_dtype"} & set(plain.model_dump())


@pytest.mark.parametrize("rope_dtype", ["bf16", "f16"])
def test_an_f16_or_bf16_angle_table_gives_the_bits_of_its_f32_copy(rope_dtype):
    """Widening the table to f32 is exact, so the stored bytes are the same. The SKU names the dtype unless it is f32."""
    narrow, args = append([4, 5], [6, 9], paged_kv=cache(dtype="bf16"), rope="half", rope_dtype=rope_dtype)
    wide = type(narrow).model_validate(narrow.model_dump() | {"rope_dtype": "f32"})
    other = replace(cloned(args), cos_sin_cache=args.cos_sin_cache.float())
    run((narrow, args)), run((wide, other))
    assert torch.equal(bits(args.k_data), bits(other.k_data))
    skus = [Plan.select(d, Preference(backend="cuda"), Target.parse("sm_90a")).sku for d in (narrow, wide)]
    assert [dict(sku.spec).get("rope_dtype") for sku in skus] == [rope_dtype, None]
    assert "rope_dtype" not in wide.model_dump()


@pytest.mark.parametrize("form", FORMS, ids=IDS)
def test_a_kernel_that_does_not_support_the_form_declines_with_a_reason(form):
    descriptor, _ = made(form)
    [cuda, reference] = survey(descriptor, Preference(), Target.parse("sm_90a"))
    assert not reference.reasons
    for reason in cuda.reasons:
        assert (reason.code, reason.field) in {("OPF-S002", "new_dtype"), ("OPF-S007", "kv_scale"), ("OPF-S009", "rope")}


def off_by_one_step(pool, place):
    pool.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[pool.element_size()])[place][0, 1] += 1


def other_pairs(descriptor):
    rope = "half" if descriptor.rope == "interleaved" else "interleaved"
    return type(descriptor).model_validate(descriptor.model_dump() | {"rope": rope})


@pytest.mark.parametrize("seed", range(6))
def test_the_error_check_detects_a_wrong_number_a_wrong_pairing_and_a_stray_write(seed):
    descriptor = problems.special_descriptor("paged_kv_append", seed, 300)
    args = inputs.make_args(descriptor, seed=seed)
    before = (args.k_data.clone(), args.v_data.clone())
    plan = Plan.select(descriptor, Preference(backend="reference"), Target.cpu())
    plan.run(args)
    assert numerics.check(descriptor, args, plan.sku, before=before).worst <= 1
    rng, indptr = random.Random(seed), args.append_indptr.tolist()
    own = [(b, n) for b, n in enumerate(b - a for a, b in pairwise(indptr)) if n]
    if not own:
        return
    request, count = rng.choice(own)
    place = naive.locations(args, descriptor.paged_kv.page_size)[request][-rng.randint(1, count)]
    wrong = cloned(args)
    off_by_one_step(wrong.k_data.transpose(1, 2) if descriptor.paged_kv.layout == "HND" else wrong.k_data, place)
    assert numerics.check(descriptor, wrong, plan.sku, before=before).worst > 1
    if descriptor.rotated > 2:
        paired = replace(cloned(args), k_data=before[0].clone(), v_data=before[1].clone())
        Plan.select(other_pairs(descriptor), Preference(backend="reference"), Target.cpu()).run(paired)
        assert numerics.check(descriptor, paired, plan.sku, before=before).worst > 1
    stray = replace(args, v_data=args.v_data.clone())
    free = next(p for p in range(descriptor.paged_kv.num_total_pages) if torch.isnan(before[1][p].float()).all())
    stray.v_data[free] = torch.ones_like(stray.v_data[free])
    assert numerics.check(descriptor, stray, plan.sku, before=before).worst == math.inf


def test_errors_name_the_index_tensors_of_append():
    descriptor, args = made(FORMS[0])
    with pytest.raises(IndexDataError, match=r"append_indptr\[1\]"):
        run((descriptor, replace(args, append_indptr=i32([0, 7, 9, 9]))))
