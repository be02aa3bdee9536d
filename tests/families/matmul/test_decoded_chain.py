"""Products of codes of any format that are first decoded to a workspace, on an emulated device, and when they are selected."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.matmul import decoded_chain as matmul_decoded_chain
from opfacade.backends.cuda.matmul.tiles import Tile
from opfacade.core.descriptor import forget_specializations
from opfacade.plan import forget_selections
from opfacade.plans.matmul import MatmulDescriptor, Weight
from opfacade.testing import inputs
from tests import emulator
from tests.families.matmul.held import held
from tests.families.matmul.test_codes_kernel import FORMS, FP8, made

SM_90A = Target.parse("sm_90a")
IMPL, Work = "wgmma_decoded_chain", matmul_decoded_chain.Work
ORDER = {"zero": "int", "group": None, "num_groups": 5}

FORMATS = {"order": ORDER, "fp8": FP8, "two terms": {"zero": "int", "dequantise": "exact"}}


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield
    forget_selections(), forget_specializations()


def paid(whether):
    forget_selections(), forget_specializations()
    return patch.object(matmul_decoded_chain, "pays", lambda work: whether)


def ran(problem, args, impl=IMPL):
    """The result of one of the two kernels, compared with its bound. A column that is not written stays NaN."""
    call = replace(args, out=torch.full_like(args.out, torch.nan))
    with paid(impl == IMPL):
        held(problem, call, impl)
    return call.out


def same(one, other):
    return torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


SERVED = sorted(set(FORMS) - {"nothing"})
MORE = {
    "odd k": made(rows=9, n=20, k=301, weight={"dtype": "int4", "group": 16}, batch=2),
    "the last line": made(rows=9, n=20, k=257, weight=ORDER),
    "many parts": made(rows=9, n=20, k=2312, weight=ORDER, sm_limit=1),
    "float zeros": made(rows=9, n=20, k=520, weight=ORDER | {"zero": "float", "scale_dtype": "f32"}, batch=3),
    "added zeros": made(rows=9, n=20, k=72, weight=ORDER | {"zero": "added", "dtype": "int4"}, gated=True),
    "two terms, odd k": made(rows=9, n=20, k=77, weight=ORDER | {"dequantise": "exact"}, batch=2),
    "terms of two products": made(rows=9, n=20, k=72, weight=ORDER | {"dequantise": "exact"}, batch=2),
    "ordered e4m3": made(rows=9, n=20, k=264, weight=ORDER | {"zero": "none", "dtype": "f8_e4m3"}),
    "ordered e2m1 of f16": made(k=72, weight=ORDER | {"zero": "none", "dtype": "e2m1", "scale_dtype": "f16"}, dtype="f16"),
}


@emulator.needed
@pytest.mark.parametrize("name", [*SERVED, *MORE])
def test_it_keeps_its_bound_and_has_the_bits_of_the_tile_kernel(name):
    problem = MORE[name] if name in MORE else FORMS[name]
    args = inputs.make_args(problem, 3)
    assert same(ran(problem, args), ran(problem, args, "wgmma_tile"))


@emulator.needed
@pytest.mark.parametrize("name", ["order", "fp8", "two terms"])
def test_a_row_has_the_bits_of_the_tile_kernel_in_any_batch(name):
    """Alone and among others, in several tiles, and if codes or rows are not aligned to sixteen bytes."""
    most = made(rows=140, n=72, k=392, weight=FORMATS[name], out_dtype="f32")
    args = inputs.make_args(most, 5)
    off = torch.empty(72, args.weight.shape[1] + 5, dtype=torch.uint8)[:, 3:-2].view(args.weight.dtype).copy_(args.weight)
    rows_off = torch.empty(140, 395, dtype=args.x.dtype)[:, 2:394].copy_(args.x)
    whole, large = ran(most, args), Tile(128, 192, 1) if name == "two terms" else Tile(192, 160, 1)
    for rows, other, impl, tile in (
        (140, {}, "wgmma_tile", None), (1, {}, "wgmma_tile", None), (1, {}, IMPL, None), (70, {}, IMPL, large),
        (140, {}, IMPL, Tile(128, 128, 1, 2)), (9, {"weight": off, "x": rows_off[:9]}, IMPL, None),
    ):  # fmt: skip
        part = most.model_copy(update={"total_num_rows": rows}).revalidated()
        call = replace(args, **({"x": args.x[:rows]} | other), out=args.out[:rows])
        with patch.object(Work, "tile", tile or Work.tile):
            assert torch.equal(ran(part, call, impl), whole[:rows])


def numbers_of(problem, **tensors):
    """The decoded weights [n, k], or [batch, n, k]: x is a unit matrix."""
    args = inputs.make_args(problem, 1)
    args.x.copy_(torch.eye(problem.k))
    for name, tensor in tensors.items():
        getattr(args, name).copy_(tensor)
    call = replace(args, out=torch.full_like(args.out, torch.nan))
    with paid(True):
        subject = emulator.subject(problem)
        assert subject.plan.sku.impl == IMPL
        subject.run(call)
    return call.out.transpose(-1, -2).double()


def packed(codes):
    return codes[..., ::2] + 16 * codes[..., 1::2]


def drawn(*size):
    return torch.randint(0, 16, size, generator=torch.Generator().manual_seed(sum(size)))


@emulator.needed
def test_a_slice_has_the_groups_that_its_table_names():
    """A slice of k of a weight in activation order has a part of weight_groups, but all scales. Indices outside of the table,
    at both limits, make numbers 0. One CTA has all columns."""
    n, groups, k = 20, 40, 520
    codes, zeros, order = (
        drawn(n, k),
        drawn(n, groups),
        torch.randint(0, groups, (k,), generator=torch.Generator().manual_seed(5)),
    )
    order[[0, 7, 256, 300, k - 1]] = torch.tensor([groups - 1, groups, 0, -1, groups - 1])
    scales = torch.arange(n * groups).reshape(n, groups) % 7 + 1
    at = order.clamp(0, groups - 1)
    want = (codes - zeros[:, at]).double() * scales[:, at] * ((order >= 0) & (order < groups))
    for begin, end in ((0, k), (8, 272), (264, k)):
        problem = made(rows=end - begin, n=n, k=end - begin, weight=ORDER | {"num_groups": groups}, out_dtype="f32", sm_limit=1)
        part = {"weight": packed(codes[:, begin:end]), "weight_groups": order[begin:end]}
        assert torch.equal(numbers_of(problem, weight_zero=zeros, weight_scale=scales, **part), want[:, begin:end])


@emulator.needed
def test_a_nan_of_no_group_is_0():
    n, k = 9, 40
    weight = ORDER | {"zero": "none", "dtype": "f8_e4m3"}
    problem = made(rows=k, n=n, k=k, weight=weight, out_dtype="f32")
    codes, order = torch.ones(n, k).to(torch.float8_e4m3fn), torch.zeros(k, dtype=torch.int32)
    codes.view(torch.uint8)[:, [5, 39]], order[[5, 39]] = 127, torch.tensor([5, -1], dtype=torch.int32)
    want = torch.ones(n, k).double()
    want[:, [5, 39]] = 0
    assert torch.equal(numbers_of(problem, weight=codes, weight_scale=torch.ones(n, 5), weight_groups=order), want)


@emulator.needed
@pytest.mark.parametrize(("group", "offset"), [(16, 0), (64, 32), (128, 96)])
def test_a_slice_begins_inside_a_group(group, offset):
    """k is not divisible by 64, and the products of a batch have different numbers."""
    batch, n, k = 2, 12, 296
    groups = -(-(k + offset) // group)
    weight = {"zero": "int", "group": group, "group_offset": offset}
    problem = made(rows=k, n=n, k=k, batch=batch, weight=weight, out_dtype="f32", sm_limit=1)
    codes, zeros = drawn(batch, n, k), drawn(batch, n, groups)
    scales = torch.arange(batch * n * groups).reshape(batch, n, groups) % 7 + 1
    at = (torch.arange(k) + offset) // group
    found = numbers_of(problem, weight=packed(codes), weight_zero=zeros, weight_scale=scales)
    assert torch.equal(found, ((codes - zeros[..., at]) * scales[..., at]).double())


@emulator.needed
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_every_number_of_e4m3_arrives_and_the_column_has_its_scale(dtype):
    n, k = 33, 512
    problem = made(rows=k, n=n, k=k, weight=FP8, dtype=dtype, out_dtype="f32")
    raw = (torch.arange(k) * 3 % 256).to(torch.uint8)
    raw[raw & 127 == 127] = 0  # NaN
    stored, scales = raw.view(torch.float8_e4m3fn).expand(n, k), torch.rand(n, 1) + 0.5
    assert torch.equal(numbers_of(problem, weight=stored, weight_scale=scales), (stored.float() * scales).double())


def of(rows, weight, n=4096, k=4096, **more):
    return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype="bf16", weight_format=weight, **more)


def chosen(problem, **prefer):
    forget_selections()
    return Plan.select(problem, Preference(backend="cuda", **prefer), SM_90A)


def impls(weight, *rows, **more):
    return [chosen(of(one, weight, **more)).sku.impl for one in rows]


GPTQ = Weight(dtype="uint4", num_groups=32, zero="int", dequantise="rounded")
E4M3 = Weight(dtype="f8_e4m3", scale_dtype="f32")


def test_any_rows_of_an_activation_order_decode_first():
    assert impls(GPTQ, 1, 16, 128, 4096) == [IMPL] * 4
    assert impls(GPTQ, 1, 4096, n=300, k=264) == [IMPL] * 2
    assert impls(GPTQ.model_copy(update={"dequantise": "exact"}), 1, 4096) == [IMPL] * 2


def test_many_rows_of_other_formats_decode_first():
    assert impls(E4M3, 1, 64, 512, 4096) == ["wgmma_tile"] * 2 + [IMPL] * 2
    assert impls(GPTQ.model_copy(update={"num_groups": None, "group": 128}), 1, 4096) == ["wgmma_codes", "wgmma_decoded"]


def test_tiles_of_two_terms_compile():
    """A kernel that spills registers does not compile here."""
    for tile in (Tile(128, 192, 1), Tile(128, 128, 1), Tile(64, 192, 1)):
        with paid(True), patch.object(Work, "tile", tile):
            plan = chosen(of(4096, Weight(dtype="int4", group=16)))
            assert plan.sku.impl == IMPL
            plan.compile()
            assert plan.cache_state == "shared"


def test_the_workspace_is_the_decoded_weight():
    """Lines of numbers are multiples of sixteen bytes, and a number of two terms is two."""
    assert chosen(of(1, GPTQ)).workspace_size == 4096 * 4096 * 2
    assert chosen(of(1, GPTQ.model_copy(update={"dequantise": "exact"}))).workspace_size == 4096 * 4096 * 4
    with paid(True):
        assert chosen(of(4096, E4M3, n=1000, k=2883, gated=True, batch=3)).workspace_size == 3 * 2000 * 2888 * 2


def test_a_smaller_workspace_selects_the_tile_kernel_with_the_same_promise():
    """k is one chain in both, also if products of 16-bit weights of this size have segments."""
    problem = of(16, GPTQ, n=256)
    first, few = chosen(problem, require="batch_invariant"), chosen(problem, max_workspace_bytes=4096)
    assert (first.sku.impl, few.sku.impl) == (IMPL, "wgmma_tile")
    assert first.precision_guarantee.error_model == few.precision_guarantee.error_model
