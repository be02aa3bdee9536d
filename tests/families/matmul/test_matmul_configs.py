"""Tiles that `tune` times in addition to the default: separate kernels with the same guarantee and the same bits."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target, explain
from opfacade.backends.cuda import matmul as backend
from opfacade.backends.cuda.matmul.tiles import Sizes, nanoseconds, tile_of, tiles_by_time
from opfacade.core.descriptor import forget_specializations
from opfacade.core.guarantee import PrecisionGuarantee
from opfacade.plan import forget_selections
from opfacade.plans.matmul import MatmulDescriptor, Scaling, Weight
from opfacade.testing import inputs
from opfacade.tune.tune import eligible
from tests import emulator

SM_90A = Target.parse("sm_90a")
PROBLEMS = {
    "large": MatmulDescriptor(total_num_rows=1024, n=4096, k=4096, dtype="bf16"),
    "segments": MatmulDescriptor(total_num_rows=3, n=96, k=7168, dtype="f16"),
    "copied": MatmulDescriptor(total_num_rows=80, n=6512, k=11163, dtype="bf16"),
    "fp8": MatmulDescriptor(total_num_rows=300, n=4096, k=4096, dtype="f8_e4m3", scaling=Scaling(kind="block")),
    "i8": MatmulDescriptor(total_num_rows=300, n=4096, k=4096, dtype="i8"),
}


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


def forget():
    """Selections under a patched rule."""
    forget_specializations()
    forget_selections()


def options(problem):
    found = eligible(problem, Preference(backend="cuda"), SM_90A)
    return [one for one in found if one.candidate.impl == "wgmma_tile"]


@pytest.mark.parametrize("name", PROBLEMS)
def test_configs_are_other_kernels_with_the_promise_of_the_default(name):
    first, *others = options(PROBLEMS[name])
    assert len(others) == 3
    assert len({one.sku.id for one in (first, *others)}) == 4
    promises: list[PrecisionGuarantee] = [one.sku.precision_guarantee for one in (first, *others)]
    assert all(one == promises[0] for one in promises)
    assert all(one.workspace_size == first.workspace_size for one in others)
    assert dict(first.sku.spec).get("repack", False) is (name == "copied")


@pytest.mark.parametrize("name", PROBLEMS)
def test_only_a_pin_or_a_measurement_selects_them(name):
    plain = Plan.select(PROBLEMS[name], None, SM_90A).sku.id
    first, *others = options(PROBLEMS[name])
    assert plain == first.sku.id
    for one in others:
        assert Plan.select(PROBLEMS[name], Preference(pin=one.sku.id), SM_90A).sku.id == one.sku.id


def test_they_come_in_the_order_of_the_model():
    sizes = Sizes(1024, 4096, 4096, 1)
    times = [nanoseconds(one, sizes, 132) for one in tiles_by_time(sizes, 132)]
    assert times == sorted(times)
    assert tiles_by_time(sizes, 132)[0] == tile_of(sizes, 132)


def test_codes_have_none():
    """Their kernels choose tiles by other rules."""
    coded = MatmulDescriptor(total_num_rows=300, n=512, k=512, dtype="bf16", weight_format=Weight(dtype="int4", group=32))
    assert not [one for one in eligible(coded, Preference(backend="cuda"), SM_90A) if one.candidate.config]


@emulator.needed
def test_their_bits_are_those_of_the_default():
    problem = MatmulDescriptor(total_num_rows=70, n=72, k=2104, dtype="bf16", bias=True)
    args, found = inputs.make_args(problem, 5), []
    for place in range(4):
        shape = backend._next_shape(problem, SM_90A, place)
        with patch.object(backend, "tile_of", lambda *_, tile=shape.tile: tile):
            forget()
            call = replace(args, out=torch.full_like(args.out, float("nan")))
            emulator.subject(problem).run(call)
            found.append(call.out)
    forget()
    assert all(torch.equal(found[0], one) for one in found)


@pytest.mark.parametrize(("scale", "dtype"), [("f8_e8m0", "bf16"), ("f8_e4m3", "bf16"), ("f8_e4m3", "f16"), ("f16", "f16")])
def test_codes_of_e2m1_that_are_rounded_have_the_kernel_of_few_rows(scale, dtype):
    weight = Weight(dtype="e2m1", group=32, scale_dtype=scale, dequantise="rounded")
    problem = MatmulDescriptor(total_num_rows=4, n=64, k=64, dtype=dtype, weight_format=weight)
    options = {option.name: option.reasons for option in explain(problem, target=Target.parse("sm_90a")).options}
    assert not options["cuda/wgmma_codes"]
