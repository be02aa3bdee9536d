"""Operands that TMA cannot load are copied by threads or into the workspace: the bits equal those of aligned operands, and no
byte outside a tensor is read."""

from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda import matmul as backend
from opfacade.backends.cuda.matmul import repack as matmul_repack
from opfacade.plans.matmul import MatmulDescriptor, Scaling
from opfacade.testing import inputs, numerics
from tests import emulator
from tests.families.matmul.held import by_tiles, forget
from tests.support.fenced import fenced
from tests.support.unaligned import in_a_child, one_element_on

SM_90A = Target.parse("sm_90a")


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None), by_tiles():
        yield


def made(rows=70, n=72, k=77, dtype="bf16", **more):
    return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype=dtype, **more)


FORMS = {
    "odd-k": made(rows=66, n=40, k=331, out_dtype="f32"),
    "even-k": made(rows=9, n=33, k=270, bias=True),
    "short": made(rows=9, n=5, k=3, dtype="f16"),
    "one": made(rows=1, n=1, k=1, out_dtype="f32"),
    "kn": made(rows=9, n=75, k=136, weight_layout="kn", out_dtype="f32"),
    "km": made(rows=71, n=72, k=130, x_layout="km", weight_layout="kn", out_dtype="f32"),
    "batched": made(rows=5, n=37, k=67, batch=3, num_valid=True, gated=True),
    "segments": made(rows=3, n=72, k=2103, out_dtype="f32"),
    "fp8": made(rows=9, n=131, k=259, dtype="f8_e4m3", scaling=Scaling(kind="block"), out_dtype="f32"),
    "i8": made(rows=7, n=33, k=1157, dtype="i8"),
}


def copied(into_workspace):
    """All operands that TMA cannot load are copied by threads, or into the workspace."""
    forget()
    return patch.object(backend.matmul_repack, "pays", lambda problem, *_: into_workspace and copies(problem) > 0)


copies = matmul_repack.copies_of


def ran(problem, args, into_workspace):
    """The output of a call, checked against its bound. The workspace first holds NaN of each type."""
    call = replace(args, out=torch.full_like(args.out, 99))
    with copied(into_workspace):
        subject = emulator.subject(problem)
        before = numerics.snapshot(problem, call)
        subject.run(call, torch.full((subject.plan.workspace_size,), 255, dtype=torch.uint8))
        assert dict(subject.plan.sku.spec).get("repack", False) == (subject.plan.workspace_size > 0) == into_workspace
    report = numerics.check(problem, call, subject.plan.sku, before=before)
    assert report.worst <= 1, report
    return call.out


def padded(tensor):
    """Lines that TMA loads."""
    wide = torch.zeros((*tensor.shape[:-1], -(-tensor.shape[-1] // 16) * 16), dtype=tensor.dtype, device=tensor.device)
    return wide[..., : tensor.shape[-1]].copy_(tensor)


def spread(tensor):
    """Elements that are not adjacent."""
    return torch.zeros((*tensor.shape, 3), dtype=tensor.dtype)[..., 1].copy_(tensor)


@emulator.needed
@pytest.mark.parametrize("name", FORMS)
def test_an_odd_operand_has_the_bits_of_one_that_tma_loads(name):
    problem = FORMS[name]
    args = inputs.make_args(problem, 3)
    loaded = ran(problem, replace(args, x=padded(args.x), weight=padded(args.weight)), True)
    views = {"x": partial(one_element_on, args.x), "weight": partial(spread, args.weight)}
    for into_workspace in (False, True):
        for moved in ((), ("x",), ("weight",)):
            call = replace(args, **{one: views[one]() for one in moved})
            assert torch.equal(ran(problem, call, into_workspace), loaded)


@emulator.needed
@pytest.mark.parametrize("k", [513, 515])
def test_a_warp_that_begins_the_next_tile_early_changes_no_line_of_the_last_warp(k, monkeypatch):
    """Warps that copy meet at no barrier. One CTA has all tiles, which share stages."""
    emulator.last_first(monkeypatch)
    problem = made(rows=20, n=300, k=k, sm_limit=1, out_dtype="f32")
    ran(problem, inputs.make_args(problem, 3), False)


@emulator.needed
@pytest.mark.parametrize("into_workspace", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_nothing_outside_of_an_odd_operand_is_read(name, into_workspace):
    problem = FORMS[name]
    args = inputs.make_args(problem, 3)
    with copied(into_workspace):
        subject = emulator.subject(problem)
        for behind in (False, True):
            call = replace(args, x=fenced(args.x, behind), weight=fenced(args.weight, behind))
            assert in_a_child(lambda: subject.run(call) is None) == 0  # noqa: B023


@pytest.mark.parametrize(
    ("problem", "wanted"),
    [
        (made(rows=70, n=72, k=77), 11264 + 11520),
        (made(rows=70, n=72, k=80), 0),
        (made(rows=5, n=37, k=67, batch=3, gated=True), 2304 + 32000),
        (made(rows=71, n=75, k=136, weight_layout="kn"), 136 * 160),
        (made(rows=71, n=72, k=130, x_layout="km", weight_layout="kn"), 18944),
        (made(rows=9, n=131, k=259, dtype="f8_e4m3"), 2560 + 35840),
    ],
)
def test_the_workspace_has_lines_of_whole_chunks(problem, wanted):
    assert copies(problem) == wanted
    with copied(True):
        assert Plan.select(problem, Preference(backend="cuda"), SM_90A).workspace_size == wanted
    with copied(False):
        assert Plan.select(problem, Preference(backend="cuda"), SM_90A).workspace_size == 0


@pytest.mark.parametrize(
    ("rows", "n", "k", "wanted"),
    [
        (3673, 3072, 5447, True),
        (2746, 4672, 833, True),
        (3673, 3072, 5448, False),
        (70, 72, 77, True),
        (9, 9, 0, False),
        (1, 9368, 7845, True),
        (14, 144, 8174, True),
        (3, 40, 33, True),
        (1, 300, 21, True),
        (7, 24576, 33, False),
    ],
)
def test_most_products_are_worth_copies(rows, n, k, wanted):
    plan = Plan.select(made(rows, n, k), Preference(backend="cuda"), SM_90A)
    assert dict(plan.sku.spec).get("repack", False) == wanted
    assert (plan.workspace_size > 0) == wanted


def test_a_kernel_with_copies_compiles_without_spills():
    with copied(True):
        plan = Plan.select(made(rows=4096, k=4001), Preference(backend="cuda"), SM_90A)
        plan.compile()
        assert plan.cache_state == "shared"
