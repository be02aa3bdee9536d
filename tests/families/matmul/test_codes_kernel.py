"""The kernel of products with codes of four bits on an emulated device: numbers of codes, groups, zero points and edges."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda import matmul as backend
from opfacade.backends.cuda.matmul.codes import Shape
from opfacade.backends.cuda.matmul.tiles import Tile
from opfacade.core.descriptor import forget_specializations
from opfacade.errors import UnsupportedError
from opfacade.plans.matmul import MatmulDescriptor, Weight
from opfacade.testing import inputs
from tests import emulator
from tests.families.matmul.held import held

SM_90A = Target.parse("sm_90a")


@pytest.fixture(autouse=True)
def _this_kernel():
    """With any assembler, the tile kernel decodes each tile of the weight."""
    first = patch.object(backend.matmul_decoded_chain, "pays", return_value=False)
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None), first:
        yield


def made(rows=5, n=40, k=224, weight=None, dtype="bf16", **more):
    given = {"dtype": "uint4", "group": 64, "scale_dtype": "bf16", "dequantise": "rounded"} | (weight or {})
    return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype=dtype, weight_format=Weight(**given), **more)


HALF = {"scale_dtype": "f16"}
MXFP4 = {"dtype": "e2m1", "group": 32, "scale_dtype": "f8_e8m0", "dequantise": "exact"}
NVFP4 = {"dtype": "e2m1", "group": 16, "scale_dtype": "f8_e4m3", "dequantise": "exact", "global_scale": True}
FP8 = {"dtype": "f8_e4m3", "group": None, "scale_dtype": "f32", "dequantise": "exact"}
INT4 = {"dtype": "int4", "dequantise": "exact"}
FORMS = {
    "zeros": made(weight={"zero": "int", "group": 128, "group_offset": 96}, bias=True, activation="silu"),
    "f16": made(rows=70, weight=HALF | {"zero": "float"}, dtype="f16", out_dtype="f32", add=True),
    "added": made(weight={"zero": "added", "group": None, "scale_dtype": "f32"}, num_valid=True),
    "edges": made(n=33, k=77, weight={"zero": "int", "group": 32}, out_dtype="f32"),
    "gated": made(n=24, k=90, gated=True, weight={"dtype": "int4"}, batch=2),
    "one-chain": made(rows=2, n=33, k=2080),
    "nothing": made(rows=3, n=9, k=0, bias=True, weight={"group": None}),
    "mxfp4": made(weight=MXFP4, bias=True),
    "mxfp4-rounded": made(n=33, k=77, weight=MXFP4 | {"dequantise": "rounded", "group": 64}),
    "nvfp4": made(rows=70, weight=NVFP4, out_dtype="f32", gated=True, activation="silu"),
    "nvfp4-f16": made(k=200, weight=NVFP4, dtype="f16", batch=2),
    "nvfp4-rounded": made(k=72, weight=NVFP4 | {"dequantise": "rounded"}),
    "fp8": made(n=33, k=77, weight=FP8, bias=True),
    "fp8-f16": made(rows=70, weight=FP8 | {"global_scale": True}, dtype="f16", add=True),
    "fp8-rounded": made(k=56, weight=FP8 | {"dequantise": "rounded", "scale_dtype": "bf16"}),
    "channel": made(weight=INT4 | {"group": None, "scale_dtype": "f32", "dequantise": "group_sum"}),
    "exact": made(rows=70, weight=INT4 | {"group": 128, "group_offset": 96}, bias=True, activation="silu"),
    "exact-f16-scales": made(n=33, k=77, weight={"dequantise": "exact", "zero": "int", "group": 32} | HALF, out_dtype="f32"),
    "exact-fp8": made(k=90, weight=FP8 | {"group": 64, "scale_dtype": "f16"}, num_valid=True),
    "order": made(n=33, k=77, weight={"zero": "int", "group": None, "num_groups": 5}, batch=2),
    "order-panels": made(k=128, weight={"dtype": "int4", "group": None, "num_groups": 5}),
    "order-exact": made(rows=70, weight={"zero": "int", "group": None, "num_groups": 3, "dequantise": "exact"}),
    "order-fp8": made(k=90, weight=FP8 | {"num_groups": 4, "scale_dtype": "bf16", "global_scale": True}),
    "exact-e2m1": made(k=90, weight={"dtype": "e2m1", "dequantise": "group_sum", "global_scale": True}),
}


def tiled(tile):
    """All products use this tile."""
    forget_specializations()
    return patch.object(backend.matmul_codes, "shape_of", lambda sizes, sms, terms: Shape(tile, None, terms=terms))


def checked(problem, args):
    held(problem, args)


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound(name):
    checked(FORMS[name], inputs.make_args(FORMS[name], 3))


@emulator.needed
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_columns_are_the_numbers_that_codes_stand_for(dtype):
    """x is a unit matrix, so that each weight appears alone in the result: (code - zero) * scale of small integers is exact."""
    k, n = 160, 40
    problem = made(rows=k, n=n, k=k, weight={"dtype": dtype, "zero": "none" if dtype == "int4" else "int", "group": 32})
    args = inputs.make_args(problem, 1)
    codes = torch.randint(0, 16, (n, k), generator=torch.Generator().manual_seed(1))
    numbers = torch.where(codes > 7, codes - 16, codes) if dtype == "int4" else codes
    scale = torch.arange(n * 5).reshape(n, 5) % 7 + 1
    args.x.copy_(torch.eye(k)), args.weight.copy_(codes[:, ::2] + 16 * codes[:, 1::2]), args.weight_scale.copy_(scale)
    zero = torch.zeros(n, 5)
    if dtype == "uint4":
        zero = torch.arange(n * 5).reshape(n, 5) % 16
        args.weight_zero.copy_(zero)
    emulator.subject(problem).run(args)
    want = (numbers - zero.repeat_interleave(32, 1)) * scale.repeat_interleave(32, 1)
    assert torch.equal(args.out.double(), want.double().T)


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def columns_of(problem, **tensors):
    """The weights [n, k] as the kernel computes them: x is a unit matrix, and out is f32."""
    args = inputs.make_args(problem, 1)
    args.x.copy_(torch.eye(problem.k))
    for name, tensor in tensors.items():
        getattr(args, name).copy_(tensor)
    emulator.subject(problem).run(args)
    return args.out.T


@emulator.needed
@pytest.mark.parametrize("scale", ["bf16", "f16"])
def test_exact_numbers_of_more_bits_than_bf16_arrive_whole(scale):
    """(code - zero) * scale has up to 15 bits: it is the sum of two bf16."""
    n, k = 40, 96
    problem = made(
        rows=k, n=n, k=k, weight={"zero": "int", "group": 32, "dequantise": "exact", "scale_dtype": scale}, out_dtype="f32"
    )
    generator = torch.Generator().manual_seed(3)
    codes, zeros = torch.randint(0, 16, (n, k), generator=generator), torch.randint(0, 16, (n, 3), generator=generator)
    scales = (torch.rand(n, 3, generator=generator) + 0.5).to(torch.bfloat16 if scale == "bf16" else torch.float16)
    found = columns_of(problem, weight=codes[:, ::2] + 16 * codes[:, 1::2], weight_zero=zeros, weight_scale=scales)
    want = (codes - zeros.repeat_interleave(32, 1)) * scales.double().repeat_interleave(32, 1)
    assert torch.equal(found.double(), want)
    assert not torch.equal(want.bfloat16().double(), want)


@emulator.needed
@pytest.mark.parametrize(("group", "scale"), [(32, "f8_e8m0"), (16, "f8_e4m3")])
def test_numbers_of_e2m1_are_codes_times_scales(group, scale):
    """A code of each value, powers of two from 2^-120 on, scales of every exponent of e4m3, including the
    smallest subnormal.
    """
    n, k = 24, 96
    problem = made(
        rows=k, n=n, k=k, weight={"dtype": "e2m1", "group": group, "scale_dtype": scale, "dequantise": "exact"}, out_dtype="f32"
    )
    codes = torch.arange(n * k).reshape(n, k) * 7 % 16
    every = torch.arange(n * (k // group))
    raw = (every * 3 + 7 if group == 32 else every % 126 + 1).to(torch.uint8)
    scales = raw.view(torch.float8_e8m0fnu if group == 32 else torch.float8_e4m3fn).reshape(n, -1)
    found = columns_of(problem, weight=codes[:, ::2] + 16 * codes[:, 1::2], weight_scale=scales)
    want = torch.tensor(E2M1).double()[codes] * scales.double().repeat_interleave(group, 1)
    assert bool(scales.double().isfinite().all())
    assert torch.equal(found.double(), want)


@emulator.needed
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_every_number_of_e4m3_arrives_and_the_column_has_its_scale(dtype):
    n, k = 33, 256
    problem = made(rows=k, n=n, k=k, weight=FP8, dtype=dtype, out_dtype="f32")
    raw = torch.arange(k, dtype=torch.uint8)
    raw[raw & 127 == 127] = 0  # NaN
    stored, scales = raw.view(torch.float8_e4m3fn).expand(n, k), torch.rand(n, 1) + 0.5
    found = columns_of(problem, weight=stored, weight_scale=scales)
    assert torch.equal(found, stored.float() * scales)


@emulator.needed
@pytest.mark.parametrize("dequantise", ["rounded", "exact"])
def test_each_element_has_the_group_that_activation_order_names_and_none_counts_as_0(dequantise):
    n, k = 33, 72
    weight = {"zero": "int", "group": None, "num_groups": 5, "dequantise": dequantise}
    problem = made(rows=k, n=n, k=k, weight=weight, out_dtype="f32")
    generator = torch.Generator().manual_seed(5)
    codes, zeros = (torch.randint(0, 16, size, generator=generator) for size in ((n, k), (n, 5)))
    scales, order = torch.arange(n * 5).reshape(n, 5) % 7 + 1, torch.randint(0, 5, (k,), generator=generator)
    order[3], order[40] = 5, -1
    found = columns_of(
        problem, weight=codes[:, ::2] + 16 * codes[:, 1::2], weight_zero=zeros, weight_scale=scales, weight_groups=order
    )
    at = order.clamp(0, 4)
    want = (codes - zeros[:, at]) * scales[:, at]
    want[:, [3, 40]] = 0
    assert torch.equal(found, want.float())


@emulator.needed
def test_an_infinite_scale_makes_infinities_and_no_rest_of_them():
    problem = made(rows=2, n=8, k=96, weight=INT4 | {"group": 64}, out_dtype="f32")
    args = inputs.make_args(problem, 2)
    args.weight_scale[3] = float("inf")
    args.x.fill_(1), args.weight.fill_(0x11)
    emulator.subject(problem).run(args)
    assert bool((args.out[:, 3] == float("inf")).all())


@emulator.needed
@pytest.mark.parametrize("dequantise", ["rounded", "exact"])
def test_a_row_has_its_bits_in_any_batch(dequantise):
    """Alone, among others, in each tile, and if codes or rows are not aligned to sixteen bytes."""
    most = made(rows=140, n=72, k=392, weight={"zero": "int", "dequantise": dequantise}, out_dtype="f32")
    large = Tile(128, 128, 1)
    args, found = inputs.make_args(most, 5), []
    off = torch.empty(72, 200, dtype=torch.uint8)[:, 3:199].copy_(args.weight)
    rows_off = torch.empty(140, 395, dtype=args.x.dtype)[:, 2:394].copy_(args.x)
    calls = [(Tile(64, 32, 2), 140, {}), (Tile(64, 32, 2), 1, {}), (Tile(64, 32, 2), 9, {"weight": off, "x": rows_off[:9]})]
    for tile, rows, other in (*calls, (large, 140, {})):
        part = most.model_copy(update={"total_num_rows": rows}).revalidated()
        with tiled(tile):
            call = replace(args, **({"x": args.x[:rows]} | other), out=torch.full((rows, 72), float("nan")))
            checked(part, call)
            found.append(call.out)
    forget_specializations()
    assert all(torch.equal(one, found[0][: len(one)]) for one in found)


@emulator.needed
def test_a_scale_past_the_end_of_k_or_n_makes_no_number():
    """Elements past k count as zeros, whatever the scale of their group is."""
    problem = made(rows=2, n=33, k=40, weight={"group": 32}, out_dtype="f32")
    args = inputs.make_args(problem, 2)
    args.weight_scale[3, 1] = float("inf")
    args.x.fill_(1), args.weight.fill_(0x11)
    emulator.subject(problem).run(args)
    assert torch.equal(args.out.isfinite().all(0), torch.arange(33) != 3)
    assert bool((args.out[:, 3] == float("inf")).all())  # zero times infinity would be NaN


@emulator.needed
def test_a_cta_has_many_tiles_of_an_odd_number_of_steps():
    """One SM: stages wrap around over tiles, three steps each."""
    problem = made(rows=130, n=100, k=330, sm_limit=1, weight={"group": None})
    with tiled(Tile(64, 32, 2)):
        checked(problem, inputs.make_args(problem, 4))
    forget_specializations()


DECLINED = {
    "weight_format.zero": {"dequantise": "exact", "zero": "float"},
    "weight_format.scale_dtype": {"dequantise": "group_sum", "scale_dtype": "f32"},
    "group_offset": {"group_offset": 8},
}


@pytest.mark.parametrize("field", DECLINED)
def test_other_formats_are_declined_by_name(field):
    with pytest.raises(UnsupportedError, match=field):
        Plan.select(made(weight=DECLINED[field]), Preference(backend="cuda"), SM_90A)


@pytest.mark.parametrize("weight", [{"zero": "int"}, MXFP4, NVFP4, FP8], ids=["uint4", "mxfp4", "nvfp4", "fp8"])
def test_the_largest_tile_compiles(weight):
    with tiled(Tile(128, 256, 1)):
        plan = Plan.select(made(rows=4096, weight=weight), Preference(backend="cuda"), SM_90A)
        plan.compile()
        assert plan.cache_state == "shared"
    forget_specializations()


def test_numbers_of_two_terms_compile_in_the_tiles_that_have_stages_for_them():
    for rows in (16, 4096):
        plan = Plan.select(made(rows=rows, n=4096, weight=INT4), Preference(backend="cuda"), SM_90A)
        plan.compile()
        assert plan.cache_state == "shared"


def test_exact_is_refused_with_the_cure():
    """In f16 scales exceed the range, and no sum of two f16 numbers represents them."""
    with pytest.raises(UnsupportedError, match="Use bf16 for x"):
        Plan.select(made(weight=INT4 | HALF, dtype="f16"), Preference(backend="cuda"), SM_90A)
    with pytest.raises(UnsupportedError, match='dequantise="rounded"'):
        Plan.select(made(weight={"dequantise": "exact", "zero": "added"}), Preference(backend="cuda"), SM_90A)
