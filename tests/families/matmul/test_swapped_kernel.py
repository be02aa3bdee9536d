"""Grouped products whose rows are on N of wgmma, on an emulated device: the bound, and the bits of rows on M."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.matmul import grouped as backend
from opfacade.backends.cuda.matmul.tiles import SWAPPED
from opfacade.core.descriptor import forget_specializations
from opfacade.testing import determinism, inputs
from tests import emulator
from tests.families.matmul import test_grouped_kernel as unswapped
from tests.families.matmul.test_grouped_kernel import FORMS, drawn, made, swapping

SM_90A = Target.parse("sm_90a")
EVERY = 2**20


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


@pytest.fixture
def _rows_on_n():
    with swapping(EVERY):
        yield


def facts_of(problem):
    return dict(Plan.select(problem, Preference(backend="cuda"), SM_90A).sku.spec)


def shapes_of(problem, tile):
    """The kernel of one tile."""
    forget_specializations()
    return patch.object(backend, "swapped_tile_of", lambda sizes, sms: tile)


@emulator.needed
@pytest.mark.usefixtures("_rows_on_n")
@pytest.mark.parametrize("name", FORMS)
def test_it_keeps_its_bound_and_writes_no_row_of_no_group(name):
    assert facts_of(FORMS[name])["swapped"]
    report = unswapped.run(FORMS[name], drawn(FORMS[name]))
    assert report.worst <= 1, report
    assert report.worst_tight <= 1, report


# Rows of groups: each width of the product, one row less and one more.
CUTS = {
    "narrow": [0, 1, 8, 17, 33, 49],
    "wide": [2, 35, 57, 121, 122, 187],
}
BITS = {
    "chain": {"n": 200, "k": 200, "out_dtype": "f32"},
    "columns first": {"n": 136, "k": 72, "weight_layout": "kn", "bias": True},
    "segments": {"n": 40, "k": 2080, "out_dtype": "f32"},
    "gathered": {"n": 72, "k": 136, "gather": True, "num_x_rows": 11},
    "gates": {"n": 40, "k": 72, "gated": True, "activation": "silu", "dtype": "f16"},
    "copied": {"n": 33, "k": 77, "out_dtype": "f32"},
}


def bits(problem, args, rows):
    """The result of a call, with rows on N for groups of at most so many rows."""
    with swapping(rows):
        call = replace(args, out=torch.full_like(args.out, 7.0))
        emulator.subject(problem).run(call)
        return call.out


@emulator.needed
@pytest.mark.parametrize("tile", SWAPPED, ids=str)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("form", BITS)
def test_rows_on_n_have_the_bits_of_rows_on_m(form, cut, tile):
    """Also the bits of a row in a tile with rows of NaN."""
    ends = CUTS[cut]
    problem = made(groups=len(ends) - 1, rows=ends[-1] + 2, **BITS[form])
    args = replace(inputs.make_args(problem, 2), indptr=torch.tensor(ends, dtype=torch.int32))
    args.x.copy_(torch.randn(args.x.shape, generator=torch.Generator().manual_seed(5)))
    args.x[3] = float("nan")
    want = bits(problem, args, 0)
    with shapes_of(problem, tile):
        found = bits(problem, args, EVERY)
    assert torch.equal(found.nan_to_num(5.0), want.nan_to_num(5.0))
    assert bool((found[ends[0] : ends[-1]] != 7.0).any(1).all())


@emulator.needed
@pytest.mark.usefixtures("_rows_on_n")
@pytest.mark.parametrize("name", ["plain", "gather"])
def test_rows_have_the_same_bits_among_any_rows_of_any_groups(name):
    unswapped.the_same_among_any_rows(FORMS[name], determinism.Campaign(needles=3, compositions=2, largest=9))


@emulator.needed
@pytest.mark.usefixtures("_rows_on_n")
def test_a_row_that_takes_none_of_x_is_not_written():
    unswapped.writes_no_row_that_takes_none(FORMS["gather"], drawn(FORMS["gather"]))


@pytest.mark.parametrize(
    ("rows", "more", "swapped"),
    [
        (8, {}, True),  # one token: eight groups have a row each
        (8 * 64, {}, True),
        (8 * 64 + 1, {}, False),
        (8, {"dtype": "f8_e4m3"}, False),
        (8192 * 8, {}, False),
        (8, {"layout": "masked"}, True),
        (9, {"layout": "masked"}, False),
        (0, {}, True),
    ],
)
def test_rows_of_a_group_decide_where_they_lie(rows, more, swapped):
    problem = made(groups=64, rows=rows, n=4096, k=7168, **more)
    assert facts_of(problem).get("swapped", False) == swapped


def test_columns_of_a_tile_follow_the_groups_that_have_rows():
    """A token of four experts: 180 tiles of 128 columns take two rounds, 360 tiles of 64 take three shorter rounds."""
    assert facts_of(made(groups=32, rows=4, n=5760, k=2880))["tile_columns"] == 64
    assert facts_of(made(groups=32, rows=256, n=5760, k=2880))["tile_columns"] == 128


@pytest.mark.parametrize(
    "more",
    [{}, {"gather": True, "num_x_rows": 16, "gated": True, "activation": "silu"}, {"weight_layout": "kn", "bias": True}],
    ids=["plain", "gathered", "columns first"],
)
def test_it_compiles_without_spills(more):
    """The suite refuses slow code of a shipped kernel."""
    plan = Plan.select(made(groups=64, rows=512, n=4096, k=4096, **more), Preference(backend="cuda"), SM_90A)
    assert dict(plan.sku.spec)["swapped"]
    plan.compile()
    assert plan.cache_state == "shared"
