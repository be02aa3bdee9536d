"""Every recipe has a bound that is small relative to its value, or a reason why it has none."""

import pytest
import torch

from opfacade.plans._folds import values as _fold_values
from opfacade.plans._programs.values import values_of
from opfacade.plans.elementwise import MapDescriptor
from opfacade.plans.reduction import FoldDescriptor
from opfacade.programs import bound
from opfacade.programs.evaluate import Values
from opfacade.programs.expression import ordered
from opfacade.programs.types import FLOATS
from tests.recipes import opinfo
from tests.recipes.test_opinfo import DISTINCT, MACHINE, OWN, accepted

MOST = 4096  # units of 2^-23: 2^-11, half a unit of f16
HALVES = torch.arange(2**16).to(torch.uint16)
EVERY = torch.cat([HALVES.view(torch.float16).float()[::3], HALVES.view(torch.bfloat16).float()[::3]])
POLES = "between -10.001 and -2.264 CUDA documents no error of lgamma"
ENDS = "0 at its ends, where a sum of cosines of rounded angles cancels"
REASONS = {
    "native_layer_norm": "a mean of terms of opposite signs cancels",
    "binary_cross_entropy_with_logits": "its terms have opposite signs, and cancel",
    "lgamma": POLES, "mvlgamma": POLES, "hann": ENDS, "blackman": ENDS, "nuttall": ENDS,
}  # fmt: skip


def drawn(names):
    """Values of all sizes: those of f16 and bf16 for one input, else random ones."""
    if len(names) == 1:
        return {names[0]: EVERY[EVERY.isfinite() & (EVERY.abs() < 1e30)]}
    draw = torch.Generator().manual_seed(0)
    sizes = {name: 2.0 ** (26 * torch.rand(20000, generator=draw) - 20) for name in names}
    return {name: size * (2 * torch.randint(0, 2, size.shape, generator=draw) - 1) for name, size in sizes.items()}


def is_placed(descriptor):
    return any(node.kind in ("read", "coord", "extent") for node in ordered(descriptor.program().values()))


def values(recipe, call, descriptor):
    """Drawn values for a program of elements; those of the sample if positions matter, or an input is not a float."""
    sample = values_of(descriptor, opinfo.bundle(descriptor, call.tensors(recipe)))
    if is_placed(descriptor) or any(given.dtype != "f32" for given in descriptor.inputs):
        return sample
    leaves = {key: value for key, value in sample.leaves.items() if key[0] == "scalar"}
    return Values(leaves | {("input", name): x for name, x in drawn([one.name for one in descriptor.inputs]).items()})


def steps(n):
    """Roundings that a term of a sum passes in a warp."""
    return n / 32 + 17


def of_elements(recipe, calls):
    """The largest ratio of radius to value, for values that are normal numbers far from the largest."""
    found = [0.0]
    for _, call, descriptor in calls if calls and is_placed(calls[0][2]) else calls[:1]:
        bounds = bound.Bounds(values(recipe, call, descriptor), MACHINE)
        for output in descriptor.outputs:
            if output.value.type in FLOATS:
                v, r = torch.broadcast_tensors(*bounds(output.value))
                normal = v.isfinite() & (v.abs() > 2.0**-100) & (v.abs() < 1e37)
                found += (r / v.abs())[normal].amax()[None].tolist() if bool(normal.any()) else []
    return max(found) * 2**23


def of_rows(recipe, calls):
    """The largest radius of a result over its largest value, except for sums that cancel."""
    found = [0.0]
    for _, call, descriptor in calls:
        bounds = _fold_values.bounds(descriptor, opinfo.bundle(descriptor, call.tensors(recipe)), MACHINE, steps)
        for output, node in zip(descriptor.outputs, descriptor.resolved[1], strict=True):
            if output.value.type in FLOATS:
                v, r = torch.broadcast_tensors(*bounds(node))
                most = v.nan_to_num(0.0, 0.0, 0.0).abs().amax() if v.numel() else v.new_zeros(())
                found += [float(r[v.isfinite()].amax() / most)] if 1e-3 < most < 1e37 else []
    return max(found) * 2**23


@pytest.mark.parametrize("name", sorted(DISTINCT.keys() - OWN))
def test_a_recipe_has_a_relative_bound_or_a_reason(name):
    recipe, ulps = DISTINCT[name], [0.0]
    for info in (info for one in recipe.names for info in opinfo.variants(one) if torch.float32 in info.dtypes):
        calls = accepted(recipe, info, torch.float32, 12)
        kinds = [[call for call in calls if isinstance(call[2], kind)] for kind in (MapDescriptor, FoldDescriptor)]
        ulps += [of_elements(recipe, kinds[0]), of_rows(recipe, kinds[1])]
    assert (max(ulps) > MOST) == (name in REASONS), ulps
