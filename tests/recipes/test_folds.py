"""Recipes that are folds: arguments that torch's samples leave out, kernels of some in the emulator, identity."""

import itertools
import math
import types
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, recipes
from opfacade.backends.cuda.folds.level_program import levels_of
from opfacade.core.descriptor import operands_of
from opfacade.errors import DescriptorError
from opfacade.plans.elementwise import MapDescriptor
from opfacade.plans.reduction import FoldDescriptor
from opfacade.recipes import shaped
from opfacade.testing import numerics
from tests import emulator
from tests.recipes import opinfo
from tests.recipes.test_opinfo import DISTINCT, OWN, SM_90A, accepted, compare, has_kernel, run

F = torch.nn.functional


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def check(name, function, *args, backend="reference", **options):
    """The recipe and the function of torch, compared as in tests/recipes/test_opinfo.py."""
    opinfo.infos()
    from torch.testing._internal.opinfo.core import SampleInput

    sample = SampleInput(args[0], args=args[1:], kwargs=options)
    info = types.SimpleNamespace(name=name, op=function)
    call = opinfo.Call.of(info, sample)
    compare(DISTINCT[name], info, sample, call, call.descriptor(DISTINCT[name]), backend)


X, Y = drawn(5, 7), drawn(6, 5, 7)[3]
TRUE = (Y > 0).float()
SIGNS = torch.where(Y > 0, 1.0, -1.0)
LABELS = torch.tensor([[0, 3, -1, 1, 2, 2, 2], [-1] * 7, [6, 5, 4, 3, 2, 1, 0], [2, -1, 2, 2, 2, 2, 2], [1, 1, -1, 1, 1, 1, 1]])
LOSSES = [
    ("l1_loss", (X, Y), {}), ("mse_loss", (X, Y), {}), ("smooth_l1_loss", (X, Y), {"beta": 0.3}),
    ("huber_loss", (X, Y), {"delta": 0.7}),
    ("l1_loss", (X, Y), {"weight": Y.abs()}), ("mse_loss", (X, Y), {"weight": Y.abs()}),
    ("huber_loss", (X, Y), {"weight": Y.abs()}),
    ("binary_cross_entropy", (X.sigmoid(), TRUE), {}), ("binary_cross_entropy", (X.sigmoid(), TRUE), {"weight": Y.abs()}),
    ("binary_cross_entropy_with_logits", (X, TRUE), {"weight": Y.abs(), "pos_weight": drawn(7).abs()}),
    ("kl_div", (X, Y.softmax(1)), {}), ("kl_div", (X, Y), {"log_target": True}),
    ("poisson_nll_loss", (X, Y.abs() * 3), {"full": True}), ("poisson_nll_loss", (X.abs(), Y.abs()), {"log_input": False}),
    ("gaussian_nll_loss", (X, Y, Y.abs()), {"full": True}), ("gaussian_nll_loss", (X, Y, Y.abs()), {"eps": 0.2}),
    ("hinge_embedding_loss", (X, SIGNS), {"margin": 0.4}), ("margin_ranking_loss", (X, Y, SIGNS), {"margin": 0.4}),
    ("soft_margin_loss", (X, SIGNS), {}),
    ("cosine_embedding_loss", (X, Y, SIGNS[:, 0]), {"margin": -0.2}),
    ("triplet_margin_loss", (X, Y, X - 1), {"margin": 0.4, "p": 3.0}), ("triplet_margin_loss", (X, Y, X - 1), {"swap": True}),
    ("triplet_margin_with_distance_loss", (X, Y, X - 1), {"margin": 0.4}),
    ("triplet_margin_loss", (X[0], Y[0], X[1]), {"eps": 0.1}), ("cosine_embedding_loss", (X[0], Y[0], SIGNS[0, 0]), {}),
    ("multilabel_soft_margin_loss", (X, TRUE), {"weight": drawn(7).abs()}),
    ("multilabel_margin_loss", (X, LABELS), {}), ("multilabel_margin_loss", (X[0], LABELS[0]), {}),
]  # fmt: skip


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(("name", "args", "options"), LOSSES, ids=lambda x: x if isinstance(x, str) else "")
def test_a_loss_of_each_reduction(name, args, options, reduction):
    check(name, getattr(F, name), *args, reduction=reduction, **options)


CLASSES, WEIGHT = torch.tensor([0, 3, 6, 3, -100]), drawn(7).abs() + 0.1
SPREAD = Y.softmax(1)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(
    ("target", "options"),
    [*itertools.product((CLASSES,), [{}, {"weight": WEIGHT}, {"label_smoothing": 0.3},
                                     {"weight": WEIGHT, "label_smoothing": 0.3, "ignore_index": 3}]),
     *itertools.product((SPREAD,), [{}, {"weight": WEIGHT}, {"weight": WEIGHT, "label_smoothing": 0.3}])],
)  # fmt: skip
def test_cross_entropy_of_classes_and_of_probabilities(target, options, reduction):
    ignored = options.get("ignore_index", -100)
    target = torch.where(target == -100, ignored, target) if not target.is_floating_point() else target
    check("cross_entropy", F.cross_entropy, X, target, reduction=reduction, **options)
    if target.is_floating_point():
        images = drawn(2, 7, 3, 4)
        check("cross_entropy", F.cross_entropy, images, (images * 2).softmax(1), reduction=reduction, **options)
        return
    check("cross_entropy", F.cross_entropy, drawn(2, 7, 3, 4), torch.randint(0, 7, (2, 3, 4)), reduction=reduction, **options)
    if reduction == "none":
        check("nll_loss", F.nll_loss, X, target, **{k: v for k, v in options.items() if k != "label_smoothing"})


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_multi_margin_loss_of_each_reduction(p, reduction):
    for options in ({}, {"margin": 0.3, "weight": WEIGHT}):
        check("multi_margin_loss", F.multi_margin_loss, X, CLASSES.abs() % 7, p=p, reduction=reduction, **options)
    check("multi_margin_loss", F.multi_margin_loss, X[0], torch.tensor(2), p=p, reduction=reduction)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_of_rows_has_a_kernel_and_no_axis_of_classes_in_the_second_fold(reduction):
    """With images too; ignored classes and weights are counted."""
    for shape in ((5, 7), (2, 7, 3, 4)):
        target = shaped(shape[0], *shape[2:], dtype="i64")
        made = recipes.cross_entropy(shaped(*shape, dtype="bf16"), target, shaped(7, dtype="bf16"), reduction=reduction)
        assert Plan.select(made, Preference(backend="cuda"), SM_90A).sku.impl == "levels"
        assert levels_of(made).rows.shape == target.shape


@pytest.mark.parametrize("ord", [1, -1, math.inf, -math.inf, "fro"])
@pytest.mark.parametrize("dim", [(-2, -1), (0, 2), (2, 0)])
def test_a_matrix_norm_of_each_order(ord, dim):
    x = drawn(3, 4, 5)
    for name, function in (("linalg_matrix_norm", torch.linalg.matrix_norm), ("linalg_norm", torch.linalg.norm)):
        for keepdim in (False, True):
            check(name, function, x, ord=ord, dim=dim, keepdim=keepdim)
    assert has_kernel(recipes.linalg_matrix_norm(x, ord, dim))


@pytest.mark.parametrize("ord", [2, -2, "nuc", 0, True])
def test_a_matrix_norm_of_singular_values_is_refused(ord):
    with pytest.raises(DescriptorError, match="inf or -inf"):
        recipes.linalg_matrix_norm(drawn(3, 4), ord)


def test_kl_div_by_the_batch():
    check("kl_div", F.kl_div, X, SPREAD, reduction="batchmean")


NORMS = [
    ("layer_norm", (drawn(4, 3, 6), [3, 6]), {"eps": 0.3}), ("rms_norm", (drawn(4, 6), [6]), {"eps": 0.3, "weight": drawn(6)}),
    ("group_norm", (drawn(2, 6, 4, 3), 3), {"weight": drawn(6), "bias": drawn(6)}), ("group_norm", (drawn(3, 4), 2), {}),
    ("instance_norm", (drawn(2, 3, 5, 4),), {"weight": drawn(3), "bias": drawn(3), "eps": 0.3}),
    ("instance_norm", (drawn(2, 3, 5), drawn(3), drawn(3).abs()), {"use_input_stats": False}),
    ("batch_norm", (drawn(4, 3, 5), drawn(3), drawn(3).abs()), {"weight": drawn(3), "bias": drawn(3)}),
    ("batch_norm", (drawn(4, 3), None, None), {"training": True}),
    ("local_response_norm", (drawn(2, 5, 3, 2), 3), {"alpha": 0.4, "beta": 0.6, "k": 1.5}),
    ("local_response_norm", (drawn(2, 5, 3), 4), {"alpha": 0.4}),
    ("normalize", (drawn(3, 6),), {"p": float("inf"), "dim": (0, 1)}), ("normalize", (drawn(3, 6),), {"p": 1.5, "eps": 4.0}),
    ("cosine_similarity", (drawn(3, 6), drawn(1, 6)), {"dim": -1}),
    ("cosine_similarity", (drawn(3, 6), drawn(6)), {"eps": 3.0}),
    ("pairwise_distance", (drawn(3, 6), drawn(6)), {"p": 1.0, "keepdim": True}),
    ("pairwise_distance", (drawn(3, 6), drawn(1, 6)), {"p": float("-inf"), "eps": 0.2}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "options"), NORMS, ids=lambda x: x if isinstance(x, str) else "")
def test_arguments_of_norms_and_distances(name, args, options):
    check(name, getattr(F, name), *args, **options)


@pytest.mark.parametrize("ord", [0, 1, 2, 3.5, -1, float("inf"), float("-inf")])
@pytest.mark.parametrize("dim", [None, 1, (0, 2), (-1, 0, 1)])
def test_a_norm_of_each_order_along_any_axes(ord, dim):
    for keepdim in (False, True):
        check("linalg_vector_norm", torch.linalg.vector_norm, drawn(3, 4, 5), ord=ord, dim=dim, keepdim=keepdim)


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "any", "var", "std", "logsumexp", "nansum", "count_nonzero"])
@pytest.mark.parametrize("dim", [0, -1, (0, 2), (2, 1), (0, 1, 2)])
def test_a_reduction_along_any_axes(name, dim):
    x = drawn(3, 4, 5)
    x[1, 2, 3] = float("nan") if name == "nansum" else 0.0
    for options in ({},) if name == "count_nonzero" else ({}, {"keepdim": True}):
        check(name, getattr(torch, name), x, dim=dim, **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int32, torch.uint8])
def test_a_dtype_converts_elements_before_they_are_joined(dtype):
    x = drawn(3, 6) * 100
    check("sum", torch.sum, x.to(torch.int16), dim=1, dtype=dtype)
    check("prod", torch.prod, (x / 50).round().abs(), dim=1, dtype=dtype)
    if dtype.is_floating_point:
        check("mean", torch.mean, x.bfloat16(), dim=1, dtype=dtype)
        check("softmax", torch.softmax, x.bfloat16(), dim=1, dtype=dtype)


def test_an_element_is_rounded_before_it_is_joined():
    x = torch.tensor([2049.0, -1.0])  # the nearest f16 of 2049 is 2048
    call = opinfo.Call((x,), {"dtype": torch.float16})
    _, (got,) = run(recipes.sum, call, recipes.sum(x, dtype="f16"))
    assert got.item() == x.sum(dtype=torch.float16).item() == 2047


def test_what_is_no_fold_without_a_reduction_is_a_map():
    assert isinstance(recipes.mse_loss(X, Y, reduction="none"), MapDescriptor)
    assert isinstance(recipes.mse_loss(X, Y), FoldDescriptor)
    assert isinstance(recipes.batch_norm(X, X[0], X[0]), MapDescriptor)
    assert isinstance(recipes.max(X, Y), MapDescriptor)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (recipes.layer_norm(X, 7, eps=0.1), recipes.layer_norm(shaped(90, 7, dtype="f32"), 7, eps=0.2)),
        (recipes.var(X, 1), recipes.var(X, 1, correction=0.5)),
        (recipes.linalg_vector_norm(X, 3, 1), recipes.linalg_vector_norm(X, 4.5, 1)),
        (recipes.huber_loss(X, Y, delta=2.0), recipes.huber_loss(X, Y, delta=0.5)),
        (recipes.softmax(shaped(5, 6, 7, dtype="bf16"), 1), recipes.softmax(shaped(2, 5, 9, dtype="bf16"), -2)),
    ],
)
def test_numbers_and_rows_are_no_part_of_a_kernel(one, other):
    plans = [Plan.select(descriptor, Preference(backend="cuda"), SM_90A) for descriptor in (one, other)]
    assert plans[0].sku.id == plans[1].sku.id


EMULATED = [
    "argmax", "var_mean", "softmax", "layer_norm", "cross_entropy", "mse_loss", "cosine_similarity", "masked_mean",
    "cosine_embedding_loss", "triplet_margin_loss", "multilabel_margin_loss", "linalg_matrix_norm",
]  # fmt: skip


def chosen(name):
    """A recipe, its OpInfo, and the first sample of several elements that has a kernel."""
    recipe, info = DISTINCT[name], opinfo.variants(DISTINCT[name].names[0])[0]
    calls = [call for call in accepted(recipe, info, torch.float32) if isinstance(call[2], FoldDescriptor)]
    return recipe, info, *next(one for one in calls if math.prod(one[2].shape) > 1 and has_kernel(one[2]))


@emulator.needed
@pytest.mark.parametrize("name", EMULATED)
def test_a_kernel_of_a_fold_computes_what_torch_does_within_its_bound(name):
    recipe, info, sample, call, descriptor = chosen(name)
    compare(recipe, info, sample, call, descriptor, backend="emulator")
    args = run(recipe, call, descriptor, "emulator")[0]
    assert numerics.check(descriptor, args, emulator.subject(descriptor).plan.sku).worst <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(DISTINCT.keys() - OWN))
def test_a_recipe_on_a_gpu_is_within_its_bound(name):
    recipe = DISTINCT[name]
    for info in (info for one in recipe.names for info in opinfo.variants(one) if torch.float32 in info.dtypes):
        for _, call, descriptor in accepted(recipe, info, torch.float32, 2):
            args = opinfo.bundle(descriptor, call.tensors(recipe))
            tensors = {one: getattr(args, one).cuda() for one in operands_of(descriptor)}
            args, plan = replace(args, **tensors), Plan.select(descriptor, Preference(backend="cuda"))
            plan.run(args)
            assert numerics.check(descriptor, args, plan.sku).worst <= 1, call
