"""Recipes: refusals, recipes with a single kernel, names, and samples as kernels in the emulator."""

import math

import numpy as np
import pytest
import torch

from opfacade import Plan, Preference, Target, recipes
from opfacade.errors import DescriptorError
from opfacade.recipes import Shaped, shaped
from opfacade.recipes._recipe import attribute
from tests import emulator
from tests.recipes import opinfo
from tests.recipes.test_opinfo import DISTINCT, accepted, compare

X, HALF, WHOLE = shaped(4, 6, dtype="f32"), shaped(4, 6, dtype="bf16"), shaped(4, 6, dtype="i32")
PLACES, EMPTY, EMPTY_ROW = shaped(3, dtype="i64"), shaped(0, 4, dtype="f32"), shaped(0, dtype="f32")
SM_90A = Target.parse("sm_90a")


@pytest.mark.parametrize(
    ("make", "argument", "words"),
    [
        (lambda: recipes.add(X, HALF), "other", "f32, the dtype of input"),
        (lambda: recipes.add(X, shaped(4, 5, dtype="f32")), "tensors", "shapes that broadcast"),
        (lambda: recipes.add(WHOLE, 0.5), "other", "i32"),
        (lambda: recipes.add(1, 2), "input", "a tensor"),
        (lambda: recipes.sin(WHOLE), "tensors", "sin of (f32)"),
        (lambda: recipes.where(X, X, X), "condition", "bool"),
        (lambda: recipes.flip(X, (2,)), "dims", "an axis, -2 .. 1"),
        (lambda: recipes.flip(X, (0, 0)), "dims", "each axis once"),
        (lambda: recipes.permute_copy(X, (0,)), "dims", "all 2 axes"),
        (lambda: recipes.pad(X, (1, 1), "mirror"), "mode", "constant"),
        (lambda: recipes.cat([X] * 9), "tensors", "1 to 8"),
        (lambda: recipes.cat([X, shaped(4, 5, dtype="f32")]), "tensors[1]", "the shape of the first tensor"),
        (lambda: recipes.gather(X, 0, X), "index", "an integer dtype"),
        (lambda: recipes.embedding(PLACES, shaped(0, 4, dtype="f32")), "weight", "at least one element"),
        (lambda: recipes.take(shaped(0, dtype="f32"), PLACES), "input", "at least one element"),
        (lambda: recipes.gather(EMPTY, 0, shaped(3, 4, dtype="i64")), "input", "at least one element"),
        (lambda: recipes.index_select(EMPTY, 0, PLACES), "input", "at least one element"),
        (lambda: recipes.take_along_dim(EMPTY, shaped(3, 4, dtype="i64"), 0), "input", "at least one element"),
        (lambda: recipes.take_along_dim(EMPTY, PLACES, outside="wrap"), "input", "at least one element"),
        (lambda: recipes.nll_loss(shaped(3, 0, dtype="f32"), PLACES), "input", "at least one element"),
        (lambda: recipes.nll_loss(shaped(3, 2, dtype="f32"), PLACES, EMPTY_ROW), "weight", "shape (2,), one number per class"),
        (lambda: recipes.pad(shaped(2, 0, dtype="f32"), (1, 1), "circular"), "input", "at least one element"),
        (lambda: recipes.pad(shaped(1, 2, 0, dtype="f32"), (1, 1), "replicate"), "input", "at least one element"),
        (lambda: recipes.pad(shaped(1, 2, 0, dtype="f32"), (1, 1), "reflect"), "input", "at least one element"),
        (lambda: recipes.view_copy(X, (5, 5)), "size", "24 elements"),
        (lambda: recipes.mse_loss(X, X, reduction="max"), "reduction", "one of none, mean, sum"),
        (lambda: recipes.kl_div(X, X, reduction="batch"), "reduction", "none, mean, sum, batchmean"),
        (lambda: recipes.sum(X, 2), "dim", "an axis, -2 .. 1"),
        (lambda: recipes.sum(X, (0, -2)), "dim", "each axis once"),
        (lambda: recipes.mean(WHOLE), "input", "a float dtype"),
        (lambda: recipes.var(X, 0, True, correction=2), "correction", "None beside unbiased"),
        (lambda: recipes.amax(shaped(3, 0, dtype="f32"), 1), "input", "at least one element along the axes (1,)"),
        (lambda: recipes.argmax(X, (0, 1)), "dim", "an axis"),
        (lambda: recipes.sum(shaped(*[2] * 6, dtype="f32"), keepdim=True), "keepdim", "at most 8 axes"),
        (lambda: recipes.norm(X, "nuc"), "p", 'a number or "fro"'),
        (lambda: recipes.linalg_norm(X, 2), "ord", '"fro"'),
        (lambda: recipes.softmax(X, 0, dtype="i32"), "input", "a float dtype"),
        (lambda: recipes.layer_norm(X, 4), "normalized_shape", "the last sizes of (4, 6)"),
        (lambda: recipes.layer_norm(X, 6, weight=shaped(4, dtype="f32")), "weight", "a tensor of shape (6,)"),
        (lambda: recipes.layer_norm(X, 6, weight=shaped(6, dtype="bf16")), "weight", "f32, the dtype of input"),
        (lambda: recipes.group_norm(X, 4), "num_groups", "a divisor of C"),
        (lambda: recipes.batch_norm(X, None, None), "running_mean", "a tensor of shape [6]"),
        (lambda: recipes.masked_sum(X, 0, mask=X), "mask", "a bool tensor whose shape broadcasts to (4, 6)"),
        (lambda: recipes.cross_entropy(X, shaped(4, 5, dtype="f32")), "target", "class indices"),
        (lambda: recipes.multi_margin_loss(X, shaped(4, dtype="i64"), p=3), "input", "p = 1 or 2"),
        (lambda: recipes.cosine_embedding_loss(X, X, X), "target", "one number per row"),
        (lambda: recipes.dot(X, X), "tensor", "two tensors with one axis"),
        (lambda: recipes.cov(X, fweights=X), "fweights", "None"),
        (lambda: recipes.gelu(X, approximate="fast"), "approximate", "tanh"),
        (lambda: recipes.one_hot(shaped(3, dtype="i64")), "num_classes", "a number"),
        (lambda: recipes.to(X, "f12"), "dtype", "one of f16"),
        (lambda: recipes.to(X, "f8_e8m0"), "dtype", "stores values by rounding"),
        (lambda: recipes.clamp(X), "min", "neither"),
        (lambda: recipes.rrelu(X, training=True), "training", "False"),
    ],
)
def test_an_argument_without_a_meaning_is_refused_by_name(make, argument, words):
    with pytest.raises(DescriptorError, match=r"^recipes\.\w+\.descriptor: ") as caught:
        make()
    assert caught.value.code == "OPF-D050"
    assert caught.value.issues[0].argument == argument
    assert words in str(caught.value)


def test_a_scalar_of_numpy_is_a_number():
    x = shaped(3, 4, dtype="f32")
    assert recipes.softmax(x, np.int64(1)) is recipes.softmax(x, 1)
    assert recipes.sum(x, (np.int64(0), np.int32(1))) == recipes.sum(x, (0, 1))
    assert recipes.mul(x, np.float32(0.5)) == recipes.mul(x, 0.5)
    assert recipes.mul(x, np.float32(-0.0)) != recipes.mul(x, np.float32(0.0))


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)])
@pytest.mark.parametrize("name", ["mul", "full_like", "masked_fill", "copysign", "div"])
def test_the_two_zeros_are_two_numbers(name, zeros):
    x, mask = torch.ones(2), torch.ones(2, dtype=torch.bool)
    for zero in zeros:
        given = (x, mask, zero) if name == "masked_fill" else (x, zero)
        made = getattr(recipes, name)(*given)
        call = opinfo.bundle(made, opinfo.Call(given, {}).tensors(getattr(recipes, name)))
        Plan.select(made, Preference(backend="reference")).run(call)
        assert torch.equal(made.written(call)[0].signbit(), getattr(torch, name)(*given).signbit())


def test_an_input_without_elements_is_taken_where_torch_takes_it():
    none, some = torch.ones(0, 4), torch.zeros(0, dtype=torch.int64)
    for name, given in {
        "index_select": (none, 0, some), "take": (none, some), "embedding": (some, none), "repeat": (none, (2, 2)),
        "flip": (none, (0,)), "pad": (none, (0, 0), "circular"),
    }.items():  # fmt: skip
        made = getattr(recipes, name)(*given)
        call = opinfo.bundle(made, opinfo.Call(given, {}).tensors(getattr(recipes, name)))
        Plan.select(made, Preference(backend="reference")).run(call)
        assert made.written(call)[0].numel() == 0
    places = torch.zeros(3, dtype=torch.int64)
    made, out = recipes.index_select(none, 0, places, outside=2.5), torch.empty(3, 4)
    Plan.select(made).run(made.args(input=none, index=places, out=out))
    assert torch.equal(out, torch.full((3, 4), 2.5))  # a number stands for what is outside


def test_a_name_without_a_recipe_says_where_the_reason_is():
    with pytest.raises(AttributeError, match=r"needs scans.*docs/ops/recipes\.md"):
        _ = recipes.cumsum
    with pytest.raises(TypeError, match="unexpected"):
        recipes.silu(X, inplace=True)


def test_a_tensor_is_as_its_shape_and_dtype_and_a_call_known_gives_one_object():
    made = recipes.silu(X)
    assert recipes.silu(torch.empty(4, 6, device="meta")) is made
    assert recipes.silu(Shaped((4, 6), "f32")) is made
    assert recipes.add(X, 0.0) is not recipes.add(X, -0.0)
    assert recipes.eq(WHOLE, 1) is not recipes.eq(WHOLE, 2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (recipes.leaky_relu(X, 0.1), recipes.leaky_relu(X, 0.3)),
        (recipes.clamp(HALF, 0, 1), recipes.clamp(shaped(9, 7, dtype="bf16"), -2, 5)),
        (recipes.roll(X, 1, 0), recipes.roll(shaped(7, 3, dtype="f32"), -3, 0)),
        (recipes.pad(X, (1, 2)), recipes.pad(shaped(3, 3, dtype="f32"), (3, 1), value=4.0)),
        (recipes.cat([X, X]), recipes.cat([shaped(1, 3, dtype="f32"), shaped(2, 3, dtype="f32")])),
        (recipes.arange(5), recipes.arange(3, 9, 2)),
        (recipes.tril(X), recipes.tril(X, 2)),
    ],
)
def test_sizes_and_numbers_are_no_part_of_a_kernel(one, other):
    plans = [Plan.select(descriptor, Preference(backend="cuda"), SM_90A) for descriptor in (one, other)]
    assert plans[0].sku.id == plans[1].sku.id
    assert plans[0].jit_spec == plans[1].jit_spec


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f8_e4m3", "i8", "u64", "bool", "f64"])
def test_to_converts_as_the_language_does(dtype):
    x = torch.tensor([0.0, 1.5, -2.7, 300.0])
    made = recipes.to(x, dtype)
    args = opinfo.bundle(made, {"input": x})
    Plan.select(made, Preference(backend="reference")).run(args)
    want = {"f8_e4m3": [0, 1.5, -2.75, 288], "i8": [0, 1, -2, 127], "u64": [0, 1, 0, 300], "bool": [0, 1, 1, 1]}
    near = {"bf16": [0, 1.5, -2.703125, 300], "f16": [0, 1.5, -2.69921875, 300], "f64": x.double().tolist()}
    assert made.written(args)[0].double().tolist() == (want | near)[dtype]


def test_unbind_gives_a_result_for_each_element_of_an_axis():
    x = torch.arange(12.0).reshape(2, 3, 2)
    made = recipes.unbind_copy(x, 1)
    args = opinfo.bundle(made, {"input": x})
    Plan.select(made, Preference(backend="reference")).run(args)
    assert all(torch.equal(a, b) for a, b in zip(made.written(args), x.unbind(1), strict=True))


def test_every_name_is_that_of_one_recipe():
    names = [name for recipe in {id(r): r for r in recipes.RECIPES.values()}.values() for name in recipe.names]
    assert len(set(names)) == len(names)
    assert all(recipe.name == known or known in map(attribute, recipe.names) for known, recipe in recipes.RECIPES.items())
    assert all(recipes.RECIPES[recipe.name] is recipe for recipe in recipes.RECIPES.values())
    assert [name for name in recipes.RECIPES if getattr(recipes, name) is not recipes.RECIPES[name]] == []
    assert recipes.unfold.names == ("nn.functional.unfold",)


EMULATED = ["silu", "gather", "pad", "cat", "where", "unfold", "hann", "remainder", "logit", "diag_embed"]


@emulator.needed
@pytest.mark.parametrize("name", EMULATED)
def test_a_kernel_of_a_recipe_computes_what_torch_does(name):
    recipe, count = DISTINCT[name], 0
    for info in (info for one in recipe.names for info in opinfo.variants(one)):
        calls = accepted(recipe, info, torch.float32)
        first = next((call for call in calls if 0 not in call[2].shape), None)
        if first is not None:
            compare(recipe, info, *first, backend="emulator")
            count += 1
    assert count


def test_nextafter_and_frexp_are_those_of_the_library_at_all_edges():
    edges = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-40, 1.1754944e-38, 3.4028235e38, float("inf"), float("nan"), 0.1])
    for dtype in (torch.float32, torch.float64):
        a, b = (one.flatten().to(dtype) for one in torch.meshgrid(edges, edges, indexing="ij"))
        assert torch.equal(ran(recipes.nextafter, a, b)[0].nan_to_num(77), torch.nextafter(a, b).nan_to_num(77))
        fraction, exponent = ran(recipes.frexp, a)
        want = torch.frexp(a)
        assert torch.equal(fraction.nan_to_num(77), want[0].nan_to_num(77))
        assert torch.equal(exponent[a.isfinite()], want[1][a.isfinite()])


@pytest.mark.parametrize(
    ("name", "src", "options"),
    [
        ("diagonal_scatter", (0,), {"offset": 10}),
        ("diagonal_scatter", (0,), {"offset": -3}),
        ("diagonal_scatter", (3,), {"dim1": 1, "dim2": 0}),
        ("diagonal_scatter", (2,), {"offset": -1, "dim1": -2, "dim2": -1}),
        ("slice_scatter", (0, 4), {"dim": 0, "start": 2, "end": 1}),
        ("slice_scatter", (3, 2), {"dim": -1, "start": -3, "end": 100, "step": 2}),
    ],
)
def test_a_part_of_the_shape_of_src_is_replaced_as_in_torch(name, src, options):
    x, new = torch.arange(12.0).view(3, 4), -1.0 - torch.arange(float(math.prod(src))).view(src)
    assert torch.equal(ran(getattr(recipes, name), x, new, **options)[0], getattr(torch, name)(x, new, **options))


def ran(recipe, *tensors, **options):
    made = recipe(*tensors, **options)
    args = opinfo.bundle(made, opinfo.Call(tensors, options).tensors(recipe))
    Plan.select(made, Preference(backend="reference")).run(args)
    return made.written(args)
