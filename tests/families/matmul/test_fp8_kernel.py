"""Products of fp8 on an emulated device: every kind of scale and edge, lost parts are detected, and bits depend on no other
row.
"""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda import matmul as backend
from opfacade.backends.cuda.matmul.tiles import TILES, Sizes, Tile, tile_of
from opfacade.core.descriptor import forget_specializations
from opfacade.errors import UnsupportedError
from opfacade.plans.matmul import EXAMPLES, MatmulDescriptor, Scaling
from opfacade.testing import inputs
from tests import emulator
from tests.families.matmul.held import held
from tests.families.matmul.planted import planted

SM_90A = Target.parse("sm_90a")
WIDE, SMALL, PAIR = Tile(128, 128, 1), Tile(64, 32, 2), Tile(128, 128, 1, 2)


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


def made(rows=70, n=72, k=200, dtype="f8_e4m3", scaling=None, **more):
    scales = Scaling(**scaling) if scaling is not None else None
    return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype=dtype, scaling=scales, **more)


# Rows of fp8 by codes have a separate kernel: test_codes_by_bytes_kernel.py.
FP8 = [one for one in EXAMPLES if isinstance(one, MatmulDescriptor) and one.dtype in ("f8_e4m3", "f8_e5m2")]
TAKEN = [one for one in FP8 if one.weight_format is None]
BLOCK = {"kind": "block"}
COLUMNS = {"kind": "tensor", "weight_kind": "token", "weight_scale_dtype": "f8_e8m0"}
FORMS = {f"example-{i}": one for i, one in enumerate(TAKEN) if one.scaling.kind != "mx32"} | {
    "plain": made(out_dtype="f32"),
    "one-row": made(rows=1, n=300, k=400, scaling=BLOCK, out_dtype="f32"),
    "long": made(rows=2, n=32, k=5000, scaling=BLOCK, out_dtype="f32"),
    "odd": made(rows=9, n=131, k=259, scaling=BLOCK, out_dtype="f32"),
    "padded": made(rows=66, n=140, k=300, scaling=BLOCK | {"x_scale_layout": "column_padded4", "x_scale_dtype": "f8_e8m0"}),
    "blocks": made(rows=3, n=300, k=272, scaling=BLOCK, out_dtype="f32"),
    "offset": made(rows=7, n=200, k=320, scaling=BLOCK | {"block_offset": (64, 64)}, out_dtype="f32"),
    "offset-odd": made(rows=7, n=70, k=40, scaling=BLOCK | {"block_offset": (77, 96)}, out_dtype="f32"),
    "ranges": made(rows=6, n=90, k=64, scaling={"kind": "token", "weight_kind": "tensor", "weight_starts": (3, 40, 41)}),
    "gated": made(rows=9, n=37, k=64, scaling={"kind": "token"}, gated=True, bias=True, activation="gelu_tanh", add=True),
    "batched": made(rows=5, n=140, k=130, batch=3, scaling=BLOCK, num_valid=True, bias=True),
    "columns": made(rows=5, n=40, k=64, batch=3, scaling=COLUMNS, num_valid=True, accumulate=True),
    "nothing": made(rows=3, n=9, k=0, scaling=BLOCK, out_dtype="f32"),
}


def tiled(tile):
    forget_specializations()
    return patch.object(backend, "tile_of", lambda sizes, sms: tile)


def checked(problem, args):
    held(problem, args, model="matmul-mma8")


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound(name):
    checked(FORMS[name], inputs.make_args(FORMS[name], 3))


@emulator.needed
@pytest.mark.parametrize("first", [0, 468])
@pytest.mark.parametrize("scaling", [None, BLOCK], ids=["plain", "blocks"])
def test_planted_products_show_each_step(first, scaling):
    """Random products hide a lost step, as tests/families/matmul/test_sums.py shows; these outweigh all others."""
    problem = made(rows=3, n=8, k=500, out_dtype="f32", scaling=scaling)
    args = planted(problem, first)
    if scaling:
        args = replace(args, x_scale=torch.ones_like(args.x_scale), weight_scale=torch.ones_like(args.weight_scale))
    checked(problem, args)
    assert torch.all((args.out - 32).abs() < 4)


@emulator.needed
@pytest.mark.parametrize(
    ("name", "tile"),
    [("odd", PAIR), ("blocks", WIDE), ("offset", SMALL), pytest.param("offset", WIDE, marks=pytest.mark.heavy)],
)
def test_no_tile_and_no_address_changes_a_bit(name, tile):
    """Rows that are not aligned to 16 bytes are copied by threads."""
    problem = FORMS[name].model_copy(update={"total_num_rows": 140}).revalidated()
    args, found = inputs.make_args(problem, 5), []
    wide = torch.zeros(140, problem.k + 3, dtype=torch.uint8)[:, 1:-2]
    moved = replace(args, x=wide.copy_(args.x.view(torch.uint8)).view(args.x.dtype))
    for one, given in ((Tile(64, 64, 2), args), (tile, args), (tile, moved)):
        with tiled(one):
            call = replace(given, out=torch.full_like(args.out, float("nan")))
            emulator.subject(problem).run(call)
            found.append(call.out)
    forget_specializations()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@emulator.needed
@pytest.mark.parametrize("name", ["padded", "gated"])
def test_a_row_has_its_bits_in_any_batch(name):
    problem = FORMS[name].model_copy(update={"total_num_rows": 70}).revalidated()
    args = inputs.make_args(problem, 5)
    emulator.subject(problem).run(args)
    part = problem.model_copy(update={"total_num_rows": 2}).revalidated()
    few = replace(args, x=args.x[:2], out=torch.empty_like(args.out[:2]), add=args.add[:2] if problem.add else None)
    down = problem.scaling.x_scale_layout == "row"
    few = replace(few, x_scale=args.x_scale[:2] if down else args.x_scale[:, :4])
    emulator.subject(part).run(few)
    assert torch.equal(few.out, args.out[:2])


@emulator.needed
def test_scales_of_zero_keep_the_bound():
    problem = made(rows=5, n=200, k=300, scaling=BLOCK, out_dtype="f32")
    args = inputs.make_args(problem, 1)
    args.x_scale[2, 1], args.weight_scale[1, 0] = 0.0, 0.0
    checked(problem, args)


@emulator.needed
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scales_that_are_no_numbers_reach_their_row_and_their_columns(value):
    problem = made(rows=5, n=200, k=300, scaling=BLOCK, out_dtype="f32")
    args = inputs.make_args(problem, 1)
    args.x_scale[2, 1], args.weight_scale[1, 0] = value, value
    emulator.subject(problem).run(args)
    finite = args.out.isfinite()
    assert torch.equal(finite.any(1), torch.arange(5) != 2)
    assert torch.equal(finite.any(0), torch.arange(200) < 128)


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("weight_layout", {"weight_layout": "kn"}),
        ("x_layout", {"x_layout": "km"}),
        ("scaling.kind", {"scaling": {"kind": "mx32", "x_scale_dtype": "f8_e8m0", "weight_scale_dtype": "f8_e8m0"}}),
        (r"scaling.block_offset\[1\]", {"scaling": BLOCK | {"block_offset": (0, 40)}}),
    ],
)
def test_what_tensor_cores_cannot_do_is_declined_by_name(field, fields):
    with pytest.raises(UnsupportedError, match=field):
        Plan.select(made(**fields), Preference(backend="cuda"), SM_90A)


@pytest.mark.parametrize("rows", [1, 64, 4096])
def test_sums_of_bytes_have_half_the_columns(rows):
    """The current part and the previous sum are both in registers."""
    assert tile_of(Sizes(rows, 7168, 2048, 1, 32, 1, parts=True), 132).columns <= 128


@pytest.mark.parametrize(("offset", "staged"), [((0, 0), True), ((64, 0), False), ((0, 64), False)])
def test_blocks_that_begin_with_the_weight_have_factors_in_shared_memory(offset, staged):
    """In that case a tile is inside one block of columns."""
    problem = made(rows=4096, n=4096, k=4096, scaling=BLOCK | {"block_offset": offset})
    assert backend._shape(problem, SM_90A).factors is staged


def test_bytes_of_k_decide_the_tile_and_not_elements():
    for rows in (1, 64, 256, 4096):
        for n in (256, 2112, 7168):
            halves = {one for one in TILES if one.columns <= 128}
            assert tile_of(Sizes(rows, n, 4096, 1, 32, 1, parts=True), 132) in halves


@pytest.mark.parametrize("tile", [PAIR, pytest.param(SMALL, marks=pytest.mark.heavy)], ids=str)
def test_it_compiles_without_spills(tile):
    with tiled(tile):
        plan = Plan.select(made(rows=4096, scaling=BLOCK), Preference(backend="cuda"), SM_90A)
        plan.compile()
        assert plan.cache_state == "shared"
    forget_specializations()
