"""Arguments of a wrong kind: each recipe refuses them with its name and the argument's name, and raises no built-in Python
error.
"""

import inspect
import math
import traceback

import pytest
import torch

from opfacade import recipes
from opfacade.errors import DescriptorError
from opfacade.recipes import RECIPES, Shaped, shaped

X = shaped(3, 4, dtype="f32")
WRONG = (2.5, -1, "a", None, [2.5], {"a": 1}, X, shaped(3, 4, dtype="bool"), True, math.inf, 10**30)
NUMBERS = {"int": 1, "float": 1.0, "bool": True, "str": "mean"}


def calls(recipe):
    """The required arguments, plain ones, with one of all arguments replaced by each wrong value: positional and named."""
    own = [p for p in inspect.signature(recipe.make).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    plain = {p.name: NUMBERS.get(p.annotation, X) for p in own if p.default is p.empty}
    first = [p.name for p in own if p.kind is p.POSITIONAL_ONLY]
    for parameter in own:
        for wrong in WRONG:
            given = plain | {parameter.name: wrong}
            yield [given.pop(name) for name in first if name in given], given


def test_no_recipe_lets_an_error_of_python_through():
    raw = []
    for recipe in {id(one): one for one in RECIPES.values()}.values():
        for args, options in calls(recipe):
            try:
                recipe(*args, **options)
            except DescriptorError:
                pass
            except TypeError as error:  # any other error ends the test
                of_signature = traceback.extract_tb(error.__traceback__)[-1].name == "_bind"
                raw += [] if of_signature else [f"{recipe.name}({args}, {options}): {error!r}"]
    assert not raw, "\n".join(raw[:20])


@pytest.mark.parametrize(
    ("make", "argument", "words"),
    [
        (lambda: recipes.softmax(2.5, 0), "input", "a tensor or a Shaped, got float"),
        (lambda: recipes.nextafter(X, 2.5), "other", "a tensor"),
        (lambda: recipes.rot90(X, 2.5), "k", "an integer, got 2.5"),
        (lambda: recipes.var(X, 0, "a"), "unbiased", "another value, got 'a'"),
        (lambda: recipes.round(X, 400), "decimals", "another value, got 400"),
        (lambda: recipes.linalg_vector_norm(X, math.nan, 1), "ord", "a number, inf or -inf, got nan"),
        (lambda: recipes.linalg_vector_norm(X, True, 1), "ord", "a number, inf or -inf, got True"),
        (lambda: recipes.arange(math.inf), "start", "got inf"),
        (lambda: recipes.arange(10**5000), "start", "too long to print"),
        (lambda: recipes.amax(X, keepdim=2), "keepdim", "True or False, got 2"),
        (lambda: recipes.amax(X, keepdim="no"), "keepdim", "True or False, got 'no'"),
        (lambda: recipes.amax(X, keepdim=[0]), "keepdim", "True or False"),
        (lambda: recipes.sum(X, {0}), "dim", "another value, got {0}"),
        (lambda: recipes.hann(X), "M", "an integer"),
        (lambda: recipes.eq(X, [1]), "other", "a tensor or a number, got [1]"),
        (lambda: recipes.silu({}), "input", "got {}"),
        (lambda: recipes.silu(Shaped((2, 3), "f9")), "tensor", "one of f16"),
        (lambda: recipes.silu(Shaped((2, -3), "f32")), "tensor", "non-negative integers"),
        (lambda: recipes.silu(torch.Tensor), "tensor", "non-negative integers"),
        (lambda: recipes.diagonal_scatter(X, shaped(4, dtype="f32")), "src", "a tensor of shape (3,), the shape of the part"),
        (lambda: recipes.diagonal_scatter(X, shaped(1, dtype="f32")), "src", "got (1,)"),
        (lambda: recipes.diagonal_scatter(X, shaped(3, dtype="f32"), 2), "src", "shape (2,)"),
        (lambda: recipes.diagonal_scatter(X, shaped(3, dtype="f32"), -1), "src", "shape (2,)"),
        (lambda: recipes.diagonal_scatter(shaped(2, 3, 4, dtype="f32"), shaped(2, dtype="f32"), 0, 0, 2), "src", "(3, 2)"),
        (lambda: recipes.diagonal_scatter(X, shaped(3, dtype="f32"), 0, 1, -1), "dim2", "an axis other than dim1"),
        (lambda: recipes.slice_scatter(X, shaped(1, 4, dtype="f32"), 0, 0, 2), "src", "a tensor of shape (2, 4)"),
        (lambda: recipes.slice_scatter(X, shaped(4, dtype="f32"), 0, 0, 2), "src", "got (4,)"),
        (lambda: recipes.slice_scatter(X, shaped(3, 3, dtype="f32"), 1, None, None, 2), "src", "shape (3, 2)"),
        (lambda: recipes.slice_scatter(X, shaped(2, 4, dtype="f32"), 0, 2, 0), "src", "shape (0, 4)"),
        (lambda: recipes.slice_scatter(X, X, 0, 0, 3, -1), "step", "1 or more, got -1"),
        (lambda: recipes.slice_scatter(X, X, 0, 0, 3, 0), "step", "1 or more, got 0"),
        (lambda: recipes.select_scatter(X, shaped(3, dtype="f32"), 0, 1), "src", "a tensor of shape (4,)"),
    ],
)
def test_the_argument_is_named(make, argument, words):
    with pytest.raises(DescriptorError, match=r"^recipes\.\w+\.descriptor: ") as caught:
        make()
    assert caught.value.code == "OPF-D050"
    assert caught.value.issues[0].argument == argument
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("make", "argument", "words"),
    [
        (lambda: shaped([2, 3], dtype="f32"), "shape", "non-negative integers, one for each axis, got ([2, 3],)"),
        (lambda: shaped(2, -3, dtype="f32"), "shape", "non-negative integers"),
        (lambda: shaped(2, dtype="f99"), "dtype", "one of f16"),
    ],
)
def test_a_shape_has_integers_and_a_dtype(make, argument, words):
    with pytest.raises(DescriptorError, match=r"^recipes\.shaped\.descriptor: ") as caught:
        make()
    assert caught.value.issues[0].argument == argument
    assert words in str(caught.value)


def test_a_shape_takes_what_torch_calls_a_dtype():
    assert shaped(2, dtype=torch.bfloat16) == Shaped((2,), "bf16")
    assert recipes.silu(Shaped([3, 4], "f32")) == recipes.silu(X)  # a list of extents


@pytest.mark.parametrize("make", [lambda: recipes.silu(), lambda: recipes.silu(X, y=2), lambda: recipes.softmax(X, 0, dim=0)])
def test_a_wrong_signature_is_an_error_of_python(make):
    with pytest.raises(TypeError, match="argument") as caught:
        make()
    assert not isinstance(caught.value, DescriptorError)


def test_the_error_of_python_is_kept_as_the_cause():
    with pytest.raises(DescriptorError) as caught:
        recipes.round(X, 400)
    assert isinstance(caught.value.__cause__, OverflowError)
