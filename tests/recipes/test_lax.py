"""Recipes with lax's names: their values against torch or numpy if these have an equivalent, else against numbers."""

import math

import mpmath
import numpy as np
import pytest
import torch

from opfacade import Preference
from opfacade.errors import DescriptorError
from opfacade.plan import Plan
from opfacade.recipes import lax, shaped
from tests.recipes import opinfo
from tests.recipes.test_recipes import ran

X = torch.tensor([-2.5, -1.0, -0.3, 0.0, 0.25, 0.5, 0.75, 1.5, 2.5, 7.0])
Y = torch.tensor([2.0, -3.0, 0.5, 1.0, -0.25, 4.0, 0.75, -1.5, 3.0, 2.0])
N = torch.tensor([-7, -1, 0, 1, 2, 6, 255, 2**31 - 1, -(2**31), 40], dtype=torch.int32)
M = torch.tensor([2, 3, 5, -2, 1, 4, 8, 31, 1, 2], dtype=torch.int32)
TORCH = {"neg": "neg", "is_finite": "isfinite", "logistic": "sigmoid", "pow": "pow", "rem": "fmod", "max": "maximum",
         "min": "minimum",
         "shift_left": "bitwise_left_shift", "shift_right_arithmetic": "bitwise_right_shift", "cbrt": None, "erf_inv": "erfinv",
         "bessel_i0e": None, "bessel_i1e": None, "round": None,
         "sign": None, "population_count": None, "clz": None, "shift_right_logical": None}  # fmt: skip
SAME = sorted({*lax.UNARY, *lax.BINARY} - {name for name, other in TORCH.items() if other is None})
OF_INTEGERS = {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "shift_left", "shift_right_arithmetic"}


ELEMENTWISE = """
abs acos acosh add asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitwise_and bitwise_not bitwise_or bitwise_xor cbrt ceil
clz cos cosh div eq erf erf_inv erfc exp exp2 expm1 floor ge gt is_finite le lgamma log log1p logistic lt max min mul ne neg
nextafter population_count pow reciprocal rem round rsqrt shift_left shift_right_arithmetic shift_right_logical sign sin sinh
sqrt square sub tan tanh
"""


def test_the_elementwise_functions_are_those_of_jax():
    assert sorted({*lax.UNARY, *lax.BINARY}) == ELEMENTWISE.split()


@pytest.mark.parametrize("name", SAME)
def test_a_function_is_that_of_torch(name):
    a, b = (N, M) if name in OF_INTEGERS else (X, Y)
    given = (a, b) if name in lax.BINARY else (a,)
    (got,) = ran(lax.LAX[name], *given)
    want = getattr(torch, TORCH.get(name, name))(*given)
    torch.testing.assert_close(got, want, rtol=3e-6, atol=1e-6, equal_nan=True)


def test_scaled_functions_are_those_of_mpmath_near_and_far():
    for dtype, near in ((torch.float32, 5e-7), (torch.float64, 3e-15)):
        x = torch.tensor([0.0, -0.3, 2.5, -8.0, 31.9, 32.1, -90.0, 599.0, 601.0, 1e4, -1e30], dtype=dtype)
        for order, made in ((0, lax.bessel_i0e), (1, lax.bessel_i1e)):
            with mpmath.workdps(30):
                want = [float(mpmath.besseli(order, v) * mpmath.exp(-abs(v))) for v in map(mpmath.mpf, x[:-1].tolist())]
            want.append((-1) ** order / math.sqrt(2 * math.pi * 1e30))
            torch.testing.assert_close(ran(made, x)[0].double(), torch.tensor(want, dtype=torch.float64), rtol=near, atol=0)


def words(x):
    return [int(n) % 2**32 for n in x]


def test_bits_are_counted_and_shifted_as_words():
    assert ran(lax.population_count, N)[0].tolist() == [n.bit_count() for n in words(N)]
    assert ran(lax.clz, N)[0].tolist() == [32 - n.bit_length() for n in words(N)]
    small = torch.tensor([0, 1, 128, 255], dtype=torch.uint8)
    assert ran(lax.clz, small)[0].tolist() == [8, 7, 0, 0]
    assert ran(lax.population_count, small)[0].tolist() == [0, 1, 1, 8]
    shifted = [(n >> m if 0 <= m < 32 else 0) for n, m in zip(words(N), M.tolist(), strict=True)]
    assert words(ran(lax.shift_right_logical, N, M)[0]) == shifted


def test_lax_means_otherwise_than_torch():
    assert ran(lax.round, X)[0].tolist() == [-3, -1, 0, 0, 0, 1, 1, 2, 3, 7]
    signs = ran(lax.sign, torch.tensor([math.nan, -0.0, 0.0, -3.0]))[0]
    assert signs.isnan().tolist() == [True, False, False, False]
    assert signs.signbit().tolist()[1:] == [True, False, True]
    assert ran(lax.div, N[:4], M[:4])[0].tolist() == [-3, 0, 0, 0]
    assert ran(lax.cbrt, torch.tensor([-8.0]))[0].tolist() == [-2.0]


def made(descriptor, **tensors):
    args = opinfo.bundle(descriptor, tensors)
    Plan.select(descriptor, Preference(backend="reference")).run(args)
    return descriptor.written(args)[0]


A = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("descriptor", "given", "want"),
    [
        (lax.clamp(0.0, X, 1.0), {"x": X}, X.clamp(0, 1)),
        (lax.integer_pow(X, 3), {"x": X}, X * (X * X)),
        (lax.integer_pow(X, -2), {"x": X}, 1 / (X * X)),
        (lax.rev(A, (1,)), {"input": A}, A.flip(1)),
        (lax.transpose(A, (1, 0)), {"input": A}, A.T),
        (lax.reshape(A, (2, 6)), {"input": A}, A.reshape(2, 6)),
        (lax.expand_dims(A, (1,)), {"input": A}, A[:, None]),
        (lax.slice(A, (1, 0), (3, 4), (1, 2)), {"operand": A}, A[1:, ::2]),
        (lax.concatenate([A, A], 1), {"tensors0": A, "tensors1": A}, torch.cat([A, A], 1)),
        (lax.broadcast_in_dim(X, (3, 10), (1,)), {"operand": X}, X.expand(3, 10)),
        (lax.broadcast_in_dim(A[:, :1], (3, 4), (0, 1)), {"operand": A[:, :1]}, A[:, :1].expand(3, 4)),
        (lax.broadcast(X, (2,)), {"operand": X}, X.expand(2, 10)),
        (lax.iota("i32", 5), {}, torch.arange(5, dtype=torch.int32)),
        (lax.broadcasted_iota("f32", (2, 3), 1), {}, torch.arange(3.0).expand(2, 3)),
        (lax.full((2, 2), 1.5), {}, torch.full((2, 2), 1.5)),
        (lax.bitcast_convert_type(X, "i32"), {"operand": X}, X.view(torch.int32)),
        (lax.bitcast_convert_type(N, "f32"), {"operand": N}, N.view(torch.float32)),
        (lax.convert_element_type(X, "i32"), {"input": X}, X.int()),
        (lax.select(X > 0, X, Y), {"condition": X > 0, "on_true": X, "on_false": Y}, torch.where(X > 0, X, Y)),
        (lax.select_n(X > 0, X, Y), {"condition": X > 0, "case0": X, "case1": Y}, torch.where(X > 0, Y, X)),
        (lax.pad(A, 9.0, [(1, 0, 1), (-1, 2, 0)]), {"operand": A}, None),
    ],
)  # fmt: skip
def test_a_move_is_that_of_lax(descriptor, given, want):
    if want is None:  # a row before, one between each two; a column less, two behind
        want = torch.full((6, 5), 9.0)
        want[1::2, :3] = A[:, 1:]
    got = made(descriptor, **given)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_tensors_of_lax_have_one_shape():
    with pytest.raises(DescriptorError, match="the same shape") as caught:
        lax.add(shaped(3, 4, dtype="f32"), shaped(4, dtype="f32"))
    assert caught.value.code == "OPF-D050"
    assert lax.add(shaped(3, 4, dtype="f32"), 2.0).shape == (3, 4)
    assert [name for name in lax.LAX if getattr(lax, name) is not lax.LAX[name]] == []
    with pytest.raises(AttributeError, match=r"lax\.fft"):
        _ = lax.fft


@pytest.mark.parametrize(("whole", "quiet"), [(torch.int32, 0x7FC00000), (torch.int64, 0x7FF8000000000000)])
def test_every_nan_has_one_pattern(whole, quiet):
    nans = torch.tensor([-1, quiet + 5, quiet]).to(whole)
    name = str(whole).removeprefix("torch.").replace("int", "i")
    x = nans.view(torch.float32 if name == "i32" else torch.float64)
    got = made(lax.bitcast_convert_type(x, name), operand=x)
    assert got.tolist() == [quiet] * 3


FOLDED = torch.tensor([[3, -7, 3], [-(2**31), 2**31 - 1, 5], [2, 2, -9]], dtype=torch.int32)
TRUTHS = torch.tensor([[True, False], [True, True], [False, False]])


@pytest.mark.parametrize(
    ("descriptor", "operand", "want"),
    [
        (lax.reduce_sum(A, (1,)), A, A.sum(1)),
        (lax.reduce_sum(A, (0, 1)), A, A.sum()),
        (lax.reduce_sum(A, ()), A, A),
        (lax.reduce_sum(FOLDED, (0,)), FOLDED, FOLDED.sum(0).int()),
        (lax.reduce_prod(FOLDED, (1,)), FOLDED, FOLDED.long().prod(1).int()),
        (lax.reduce_max(FOLDED, (0,)), FOLDED, FOLDED.amax(0)),
        (lax.reduce_min(A, (0,)), A, A.amin(0)),
        (lax.reduce_max(TRUTHS, (1,)), TRUTHS, TRUTHS.any(1)),
        (lax.reduce_min(TRUTHS, (1,)), TRUTHS, TRUTHS.all(1)),
        (lax.reduce_and(TRUTHS, (0, 1)), TRUTHS, TRUTHS.all()),
        (lax.reduce_or(TRUTHS, (1,)), TRUTHS, TRUTHS.any(1)),
        (lax.argmax(FOLDED, 1), FOLDED, torch.tensor([0, 1, 0], dtype=torch.int32)),
        (lax.argmin(FOLDED, 0, "i64"), FOLDED, torch.tensor([1, 0, 2])),
        (lax.argmax(TRUTHS, 0), TRUTHS, torch.tensor([0, 1], dtype=torch.int32)),
        (lax.argmin(X / (X - 0.5), 0), X / (X - 0.5), torch.tensor(4, dtype=torch.int32)),
    ],
)
def test_a_reduction_is_that_of_lax(descriptor, operand, want):
    """Its dtype is unchanged, integers wrap."""
    got = made(descriptor, operand=operand)
    assert got.dtype == want.dtype
    assert torch.equal(got, want)


def test_a_reduction_of_lax_takes_what_lax_does():
    with pytest.raises(DescriptorError, match="no bitwise reducer for integers"):
        lax.reduce_and(FOLDED, (0,))
    with pytest.raises(DescriptorError, match="each axis once"):
        lax.reduce_sum(A, (0, -2))
    with pytest.raises(DescriptorError, match=r"exponent_bits expected 1 \.\. 8"):
        lax.reduce_precision(X, 9, 7)
    with pytest.raises(DescriptorError, match="operand expected f32"):
        lax.reduce_precision(X.double(), 5, 10)


def test_a_float_of_fewer_bits():
    spread = torch.arange(0, 2**32, 7919 * 65537).to(torch.uint32).view(torch.float32)
    spread = torch.cat([spread, torch.arange(2**16).to(torch.uint16).view(torch.float16).float() * (1 + 2.0**-11)])
    half = spread.half().float()
    smallest = 2.0**-14  # normal number of f16; what rounds to less is 0 with its sign
    want = torch.where(spread.abs() < smallest * (1 - 2.0**-12), torch.copysign(torch.tensor(0.0), spread), half)
    assert torch.equal(made(lax.reduce_precision(spread, 5, 10), operand=spread).nan_to_num(77.0), want.nan_to_num(77.0))
    assert torch.equal(made(lax.reduce_precision(spread, 8, 7), operand=spread).nan_to_num(77.0),
                       spread.bfloat16().float().nan_to_num(77.0))  # fmt: skip
    small = torch.tensor([1.0625, 1.1875, -247.9, -248.0, 2.0**-6, 2.0**-7, math.inf, 1e-45])
    assert made(lax.reduce_precision(small, 4, 3), operand=small).tolist() == [
        1,
        1.25,
        -240,
        -math.inf,
        2.0**-6,
        0,
        math.inf,
        0,
    ]
    assert torch.equal(made(lax.reduce_precision(small, 8, 23), operand=small), small)
