"""A shape that torch refuses is refused by the recipe too: one size or one axis of one tensor of a valid call is changed.

An input that is read at computed positions has a shape of its own, so a wrong shape would read the nearest element.
"""

import pytest
import torch

from opfacade import Plan, Preference, recipes
from opfacade.errors import DescriptorError
from opfacade.recipes import shaped
from tests.recipes import opinfo
from tests.recipes.test_opinfo import DISTINCT, OWN, accepted

WIDER = {  # recipes that accept more shapes than torch
    "_native_batch_norm_legit": "running statistics are not read; torch's CPU code reads beyond them",
    "native_batch_norm": "running statistics are not read; torch's CPU code reads beyond them",
    "batch_norm": "running statistics are not read in training",
    "instance_norm": "a weight may have an axis of size 1; running statistics are not read in training",
    "group_norm": "operands have split axes",
    "native_group_norm": "operands have split axes",
    "cross": "the axes are broadcast",
    "linalg_cross": "the axes are broadcast",
    "linalg_vecdot": "the axes are broadcast",
    "margin_ranking_loss": "the axes are broadcast",
    "binary_cross_entropy_with_logits": "the weight may have more axes",
    "masked_logaddexp": "the masks may have more axes",
    "meshgrid": "tensors are flattened",
    "masked_fill": "the value may have an axis",
    "index_fill": "the value may have an axis",
    "repeat": "is `tile` too",
    "unfold": "an image without channels has no elements",
    "pad": "an image without rows has no elements",
}
NAMES = sorted(set(DISTINCT) - set(WIDER) - OWN)


def sized(axis, by):
    return lambda tensor: tensor.new_zeros([max(n + by, 0) if i == axis else n for i, n in enumerate(tensor.shape)])


def changes(tensor):
    found = [sized(axis, by) for axis in range(tensor.ndim) for by in (1, -1)]
    return [*found, lambda one: one.unsqueeze(0), *([lambda one: one[0]] if tensor.ndim and len(tensor) else [])]


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for item in value for one in tensors_of(item)] if isinstance(value, (list, tuple)) else []


def with_another_shape(call):
    """The call with one tensor changed. Its tensors hold zeros: no index is out of range."""
    zeros = call.changed(torch.zeros_like)
    for old in tensors_of([list(zeros.args), list(zeros.options.values())]):
        for change in changes(old):
            yield zeros.changed(lambda one, old=old, change=change: change(one) if one is old else one)


def torch_refuses(info, call):
    first, *rest = call.args
    swapped = info.name in ("where", "nn.functional.embedding")  # samples begin with the second argument
    try:
        info.op(*((rest[0], first, *rest[1:]) if swapped else (first, *rest)), **call.options)
    except (RuntimeError, ValueError, IndexError):
        return True
    except AssertionError:  # a padding_idx beyond the weight
        return False
    return False


@pytest.mark.parametrize("name", NAMES)
def test_a_shape_that_torch_refuses_is_refused(name):
    recipe, wrong = DISTINCT[name], []
    for info in [info for known in recipe.names for info in opinfo.variants(known)]:
        for _, call, _ in accepted(recipe, info, torch.float32, 3):
            for other in with_another_shape(call):
                if torch_refuses(info, other):
                    try:
                        wrong.append((other.changed(opinfo.seen), other.descriptor(recipe).shape))
                    except DescriptorError:
                        continue
    assert not wrong, wrong[:3]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(4, 4), (4,), (4, 1), (1, 4)])
def test_a_variance_without_the_last_axis_is_one_per_row(reduction, shape):
    input, target = torch.randn(4, 4), torch.randn(4, 4)
    call = opinfo.Call((input, target, torch.rand(shape) + 0.1), {"reduction": reduction})
    made = call.descriptor(recipes.gaussian_nll_loss)
    args = opinfo.bundle(made, call.tensors(recipes.gaussian_nll_loss))
    Plan.select(made, Preference(backend="reference")).run(args)
    want = torch.nn.functional.gaussian_nll_loss(*call.args, reduction=reduction)
    torch.testing.assert_close(made.written(args)[0], want)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (4, 2), (2, 4, 1)])
def test_a_variance_of_another_shape_is_refused(shape):
    x = shaped(4, 4, dtype="f32")
    with pytest.raises(DescriptorError, match="var expected shape"):
        recipes.gaussian_nll_loss(x, x, shaped(*shape, dtype="f32"))


@pytest.mark.parametrize("name", ["amax", "amin", "max", "min", "aminmax"])
def test_an_extreme_of_no_bool_is_refused(name):
    with pytest.raises(DescriptorError, match="at least one element"):
        getattr(recipes, name)(shaped(0, dtype="bool"))
