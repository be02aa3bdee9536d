"""The matmul kernel on an emulated device: every form and layout; bits depend on no other row and no tile."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda import matmul as backend
from opfacade.backends.cuda.matmul.tiles import HALVES, TILES, Tile
from opfacade.core.descriptor import forget_specializations, operands_of
from opfacade.errors import UnsupportedError
from opfacade.plans.matmul import EXAMPLES, MatmulDescriptor
from opfacade.testing import inputs
from opfacade.testing.bits import same_bits
from tests import emulator
from tests.families.matmul.held import by_tiles, held
from tests.support import poison

SM_90A = Target.parse("sm_90a")


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None), by_tiles():
        yield


def made(rows=70, n=72, k=200, dtype="bf16", **more):
    return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype=dtype, **more)


PLAIN = [
    one for one in EXAMPLES if isinstance(one, MatmulDescriptor) and one.dtype in ("f16", "bf16") and one.weight_format is None
]
FORMS = {f"example-{i}": one for i, one in enumerate(PLAIN)} | {
    "plain": made(),
    "whole": made(rows=64, n=64, k=128, out_dtype="f32"),
    "one-row": made(rows=1, n=96, k=264, dtype="f16"),
    "odd-n": made(rows=5, n=33, k=72, out_dtype="f32", bias=True, bias_dtype="bf16"),
    "odd-k": made(rows=66, n=40, k=77, dtype="f16"),
    "added": made(add=True, accumulate=True, beta=0.25, alpha=-2.0, out_dtype="f16", dtype="bf16"),
    "gated-odd": made(rows=9, n=37, k=64, gated=True, bias=True, activation="gelu_tanh", add=True),
    "batched": made(rows=5, n=40, k=64, batch=3, bias=True, num_valid=True),
    "gradient": made(rows=72, n=40, k=66, x_layout="km", weight_layout="kn", accumulate=True, out_dtype="f32"),
    "nothing": made(rows=3, n=9, k=0, bias=True, activation="relu"),
    "many_bands": made(rows=600, n=40, k=16, dtype="f16"),
    "of-few-sms": made(rows=130, n=100, k=64, sm_limit=1),
}


def tiled(tile):
    """All products use this tile."""
    forget_specializations()
    return patch.object(backend, "tile_of", lambda sizes, sms: tile)


def checked(problem, args):
    held(problem, args)


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound(name):
    checked(FORMS[name], inputs.make_args(FORMS[name], 3))


def apart(tensor, step):
    """Rows with a stride larger than their length, from an address that is `step` elements off."""
    wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 3 * step), float("nan"), dtype=tensor.dtype)
    return wide[..., step : step + tensor.shape[-1]].copy_(tensor)


@emulator.needed
@pytest.mark.parametrize("step", [1, 8])
@pytest.mark.parametrize("name", ["plain", "added", "batched", "gradient", "gated-odd"])
def test_strides_and_addresses_change_no_bit(name, step):
    """Rows at multiples of 16 bytes are loaded by TMA, others are copied by threads."""
    problem = FORMS[name]
    args = inputs.make_args(problem, 3)
    names = [one for one in operands_of(problem) if one not in ("num_valid", "bias")]
    other = replace(args, **{one: apart(getattr(args, one), step) for one in names})
    for call in (args, other):
        emulator.subject(problem).run(call)
    assert torch.equal(args.out.nan_to_num(7.0), other.out.nan_to_num(7.0))
    around = other.out.as_strided((args.out.numel(),), (1,), 0).isnan()
    assert bool(around[:step].all())  # content before the first row


@emulator.needed
@pytest.mark.parametrize("name", ["plain", "added", "batched"])
def test_a_row_has_its_bits_in_any_batch(name):
    """Alone, among others, and in each tile."""
    problem = replace_sizes(FORMS[name], total_num_rows=70)
    args = inputs.make_args(problem, 5)
    first = args.out.clone()
    emulator.subject(problem).run(args)
    for rows in (1, 9):
        part = replace_sizes(problem, total_num_rows=rows)
        few = replace(args, out=first[..., :rows, :].clone(), x=args.x[..., :rows, :])
        few = replace(few, add=args.add[..., :rows, :]) if problem.add else few
        few = replace(few, num_valid=args.num_valid.clamp(max=rows)) if problem.num_valid else few
        emulator.subject(part).run(few)
        assert torch.equal(few.out.nan_to_num(7.0), args.out[..., :rows, :].nan_to_num(7.0))


def replace_sizes(problem, **sizes):
    return problem.model_copy(update=sizes).revalidated()


@emulator.needed
@pytest.mark.parametrize(
    "tile", [one if one.rows == 64 else pytest.param(one, marks=pytest.mark.heavy) for one in (*TILES, *HALVES)], ids=str
)
def test_no_tile_changes_a_bit(tile):
    problem = made(rows=150, n=300, k=136, out_dtype="f32", bias=True)
    args = inputs.make_args(problem, 5)
    found = []
    for one in (TILES[-1], tile):
        with tiled(one):
            call = replace(args, out=torch.full_like(args.out, float("nan")))
            checked(problem, call)
            found.append(call.out)
    forget_specializations()
    assert torch.equal(*found)


STAGED = {
    "plain": made(rows=150, n=328, k=72),
    "few-rows": made(rows=18, n=40, k=72, dtype="f16"),
    "long-program": made(rows=150, n=328, k=72, bias=True, activation="gelu_tanh", add=True),
    "valid": made(rows=150, n=104, k=72, num_valid=True),
    "batched": made(rows=20, n=72, k=72, batch=3),
}


@emulator.needed
@pytest.mark.parametrize("tile", [Tile(64, 32, 2), Tile(128, 160, 1), Tile(128, 256, 1), Tile(192, 192, 1)], ids=str)
@pytest.mark.parametrize("name", STAGED)
def test_rows_that_are_staged_have_the_bits_of_those_that_are_not(name, tile):
    """Rows of out are aligned, or begin an element later; nothing outside them is written."""
    problem, found = STAGED[name], []
    args = inputs.make_args(problem, 5)
    if problem.num_valid:
        args.num_valid.fill_(77)
    rows = args.out.shape[-2]
    with tiled(tile):
        for step in (0, 1):
            wide = torch.full((*args.out.shape[:-2], rows + 2, args.out.shape[-1] + 8), 7.0).to(args.out.dtype)
            held(problem, replace(args, out=wide[..., 1 : rows + 1, step : step + problem.n]))
            found.append(wide[..., 1 : rows + 1, step : step + problem.n].clone())
            wide[..., 1 : rows + 1, step : step + problem.n] = 7.0
            assert (wide == 7).all()
    forget_specializations()
    assert torch.equal(*found)
    assert not problem.num_valid or (found[0][77:] == 7).all()


@emulator.needed
@pytest.mark.parametrize("valid", [None, 13, 20])
def test_nothing_is_stored_behind_a_row_that_ends_inside_a_vector(valid):
    """Rows are aligned to 16 bytes, and 77 columns are not."""
    problem = made(rows=20, n=77, k=72, num_valid=valid is not None)
    wide, args = torch.full((20, 88), 7.0).bfloat16(), inputs.make_args(problem, 5)
    if args.num_valid is not None:
        args.num_valid.fill_(valid)
    held(problem, replace(args, out=wide[:, :77]))
    assert (wide[:, 77:] == 7).all()
    assert (wide[valid:] == 7).all() or valid is None


@emulator.needed
def test_a_wrong_count_of_valid_rows_leaves_every_row():
    problem = FORMS["batched"]
    for name, args in poison.counts(problem, 3):
        before = poison.left_alone(problem, "num_valid", args)
        emulator.subject(problem).run(args)
        assert same_bits(args.out, before["out"]), name


@emulator.needed
@pytest.mark.parametrize("step", [0, 1])
def test_ctas_of_a_cluster_share_their_weight(step):
    """By TMA; with copies by threads, clusters share nothing."""
    problem = made(rows=300, n=130, k=72, out_dtype="f32")
    args = inputs.make_args(problem, 5)
    args = replace(args, x=apart(args.x, step)) if step else args
    found = []
    for tile in (Tile(64, 32, 2), Tile(128, 128, 1, 2)):
        with tiled(tile):
            call = replace(args, out=torch.full_like(args.out, float("nan")))
            checked(problem, call)
            found.append(call.out)
    forget_specializations()
    assert torch.equal(*found)


@emulator.needed
@pytest.mark.parametrize("tile", [Tile(64, 64, 2), Tile(128, 128, 1, 2)], ids=str)
@pytest.mark.parametrize("layouts", [("mk", "kn"), ("km", "nk"), ("km", "kn")], ids=" ".join)
def test_layouts_are_loaded_as_they_lie(layouts, tile):
    """By TMA, or copied if addresses are not aligned to 16 bytes: the bits of the product of the transposed operand."""
    problem = made(rows=264, n=136, k=72, out_dtype="f32", x_layout=layouts[0], weight_layout=layouts[1])
    args, found = inputs.make_args(problem, 5), []
    plain = made(rows=264, n=136, k=72, out_dtype="f32")
    x, weight = (
        t.mT.contiguous() if name in ("km", "kn") else t for t, name in zip((args.x, args.weight), layouts, strict=True)
    )
    calls = [(plain, replace(args, x=x, weight=weight)), (problem, args)]
    calls.append((problem, replace(args, x=apart(args.x, 1), weight=apart(args.weight, 1))))
    with tiled(tile):
        for one, call in calls:
            found.append(torch.full_like(args.out, float("nan")))
            checked(one, replace(call, out=found[-1]))
    forget_specializations()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


SEGMENTED = made(rows=70, n=72, k=2104, out_dtype="f32", bias=True)


def split(tile, count=4):
    return tile._replace(split=count)


@emulator.needed
@pytest.mark.parametrize("rows", [1, 70])
def test_segments_have_their_bits_in_a_cluster_and_in_one_cta(rows):
    """Four segments of 640 elements, the last one shorter; in separate tiles, and in order within one CTA."""
    problem = replace_sizes(SEGMENTED, total_num_rows=rows)
    args, found = inputs.make_args(problem, 5), []
    copied = replace(args, x=apart(args.x, 1))
    small, wide = Tile(64, 32, 2), Tile(64, 64, 2)
    for tile, given in ((split(small), args), (wide, args), (split(wide), args), (split(small), copied)):
        with tiled(tile):
            call = replace(given, out=torch.full_like(args.out, float("nan")))
            checked(problem, call)
            found.append(call.out)
    forget_specializations()
    assert all(torch.equal(found[0], one) for one in found)


@emulator.needed
@pytest.mark.parametrize(("k", "many"), [(4104, 7), (5000, 8)])
def test_segments_have_their_bits_in_a_cluster_whose_ctas_have_two(k, many):
    """With seven segments, the last of four CTAs has one."""
    problem = replace_sizes(SEGMENTED, total_num_rows=66, n=40, k=k)
    args, found = inputs.make_args(problem, 5), []
    for tile in (Tile(64, 64, 2), split(Tile(64, 32, 2), 4), split(Tile(64, 64, 2), many)):
        with tiled(tile):
            call = replace(args, out=torch.full_like(args.out, float("nan")))
            checked(problem, call)
            found.append(call.out)
    forget_specializations()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@emulator.needed
def test_order_k_has_no_segments():
    """Their sums differ from those of one chain."""
    args, found = inputs.make_args(SEGMENTED, 5), []
    for order in ("free", "k"):
        call = replace(args, out=torch.full_like(args.out, float("nan")))
        checked(SEGMENTED.model_copy(update={"order": order}).revalidated(), call)
        found.append(call.out)
    assert not torch.equal(*found)


@emulator.needed
def test_the_last_ctas_may_run_first(monkeypatch):
    emulator.last_first(monkeypatch)
    checked(FORMS["plain"], inputs.make_args(FORMS["plain"], 3))


@emulator.needed
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row_and_in_its_column(value):
    problem = made(rows=5, n=40, k=72, out_dtype="f32")
    args = inputs.make_args(problem, 1)
    args.x[2, 7], args.weight[3, 70] = value, value
    emulator.subject(problem).run(args)
    finite = args.out.isfinite()
    assert torch.equal(finite.any(1), torch.arange(5) != 2)
    assert torch.equal(finite.any(0), torch.arange(40) != 3)


@pytest.mark.parametrize("fields", [{"dtype": "f32"}, {"dtype": "f64"}])
def test_other_types_are_declined_by_name(fields):
    with pytest.raises(UnsupportedError, match="dtype"):
        Plan.select(made(**fields), Preference(backend="cuda"), SM_90A)


def test_other_architectures_are_declined_by_name():
    with pytest.raises(UnsupportedError, match=r"target\.arch"):
        Plan.select(made(), Preference(backend="cuda"), Target.parse("sm_80"))


@pytest.mark.parametrize("tile", [TILES[0], TILES[-1], HALVES[0]], ids=str)
def test_it_compiles_without_spills(tile):
    with tiled(tile):
        plan = Plan.select(made(rows=4096), Preference(backend="cuda"), SM_90A)
        plan.compile()
        assert plan.cache_state == "shared"
    forget_specializations()


ACROSS = [
    pytest.param(tile, x, marks=() if tile.columns == 192 and x == "mk" else pytest.mark.heavy)
    for tile in TILES
    for x in ("mk", "km")
    if tile.columns // tile.cluster % 64 == 0 and tile.rows == 64
]


@pytest.mark.parametrize(("tile", "x"), ACROSS, ids=str)
def test_every_width_has_an_instruction_that_transposes(tile, x):
    """The emulator transposes tiles of any width."""
    with tiled(tile):
        plan = Plan.select(made(rows=64, x_layout=x, weight_layout="kn"), Preference(backend="cuda"), SM_90A)
        plan.compile()
        assert plan.cache_state == "shared"
    forget_specializations()
