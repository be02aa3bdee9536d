"""Products of codes whose warpgroups decode a panel while they multiply the previous one, on an emulated device."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade.core.descriptor import forget_specializations
from opfacade.testing import inputs
from tests import emulator
from tests.families.matmul.test_coded_kernel import HALF, MXFP4, NVFP4, SHAPES, checked, made, shaped


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield
    forget_specializations()


# Whole stages of 256 elements, and one, two or three further panels of 64; only the third k is a multiple of a group of 128.
SIZES = {"one": 832, "two": 640, "three": 1216, "none": 1024, "few": 192}
FORMATS = {
    "uint4": {"zero": "int", "group": 128},
    "int4": {"dtype": "int4", "group": 32},
    "floats": HALF | {"zero": "float"},
    "one scale": {"dtype": "int4", "group": None, "scale_dtype": "f32"},
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
}


def of_format(name, **more):
    return made(weight=FORMATS[name], dtype="f16" if name == "floats" else "bf16", out_dtype="f32", **more)


@emulator.needed
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("aside", [1, 2])
def test_every_tile_of_a_cta_keeps_its_bound(name, aside):
    """Tables of the next tile are read with this tile; two weights, whose scales differ."""
    problem = of_format(name, rows=140, n=140, k=832, batch=2, sm_limit=aside)
    with shaped(rows=128, along=1, beside=2, split=1, aside=aside):
        checked(problem, inputs.make_args(problem, 4))


@emulator.needed
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["uint4", "nvfp4"])
def test_each_panel_is_added_once(name, size):
    """Equals the bits of the kernel for few rows, with segments and without."""
    problem = of_format(name, rows=70, n=72, k=SIZES[size])
    args = inputs.make_args(problem, 6)
    found = []
    for shape in (SHAPES["64"][1], SHAPES["128"][1], {"rows": 64, "along": 4, "beside": 1, "split": 1, "aside": 1}):
        call = replace(args, out=torch.full_like(args.out, torch.nan))
        with shaped(**shape):
            checked(problem, call)
        found.append(call.out)
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[2])
