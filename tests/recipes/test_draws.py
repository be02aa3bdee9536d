"""Draws: the words of Philox that each element takes, against the rule of torch's stateless kernel in numpy; distributions."""

import inspect
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from opfacade import Plan, Preference, Target, recipes
from opfacade.errors import DescriptorError
from opfacade.recipes import shaped
from opfacade.testing import numerics
from tests import emulator
from tests.recipes import opinfo
from tests.recipes.test_recipes import ran
from tests.support import naive_program

SEED, OFFSET = 0x123456789ABCDEF1, 2**32 - 3
DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
SIGNIFICAND = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
COUNT = 200_000
X = shaped(4, 6, dtype="f32")


def words(count, seed=SEED, offset=OFFSET, stream=0):
    return [naive_program.philox(seed, offset, i, stream) for i in range(count)]


def drawn(made, **tensors):
    args = opinfo.bundle(made, tensors)
    Plan.select(made, Preference(backend="reference")).run(args)
    return made.written(args)[0]


def torch_uniform(count, dtype):
    """As in torch's PhiloxDistribution.cu: the low bits of one word; for f64, of two words, the upper one first."""
    found = words(2 * count if dtype == "f64" else count)
    whole = [found[2 * i] << 32 | found[2 * i + 1] for i in range(count)] if dtype == "f64" else found
    digits = SIGNIFICAND[dtype]
    return [(bits % 2**digits) / 2**digits for bits in whole]


def torch_normal(count, dtype):
    """torch's Box-Muller, in f64: four elements per call, or two f64."""
    found = words(2 * count + 4)
    if dtype == "f64":
        u = [(found[2 * i] + (found[2 * i + 1] + 0.5) / 2**32) / 2**32 for i in range(count)]
    else:
        u = [float(np.float32(np.float32(one) * np.float32(2**-32) + np.float32(2**-33))) for one in found[:count]]
    pairs = [(math.sqrt(-2 * math.log(u[i])), 2 * math.pi * u[i + 1]) for i in range(0, count, 2)]
    return [value for radius, angle in pairs for value in (radius * math.cos(angle), radius * math.sin(angle))]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_uniform_number_has_the_bits_of_torchs_stateless_generator(dtype):
    made = recipes.rand((3, 5), dtype=dtype, seed=SEED, offset=OFFSET)
    got = drawn(made).flatten()
    assert got.double().tolist() == torch_uniform(15, dtype)
    assert torch.equal(drawn(recipes.uniform(shaped(3, 5, dtype=dtype), seed=SEED, offset=OFFSET)).flatten(), got)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_normal_number_is_that_of_torchs_stateless_generator(dtype):
    got = drawn(recipes.randn((3, 6), dtype=dtype, seed=SEED, offset=OFFSET)).flatten().double()
    want = torch.tensor(torch_normal(18, dtype), dtype=torch.float64)
    torch.testing.assert_close(got, want, rtol=max(2.0 ** -SIGNIFICAND[dtype], 1e-13), atol=1e-6 if dtype != "f64" else 1e-15)


def test_a_key_is_a_tensor_of_seed_and_offset():
    key = torch.tensor([SEED, OFFSET], dtype=torch.uint64)
    for make in (
        lambda **at: recipes.rand((7,), **at), lambda **at: recipes.randint(-5, 9, (7,), **at),
        lambda **at: recipes.exponential_(X, **at),
    ):  # fmt: skip
        assert torch.equal(drawn(make(key=key), key=key), drawn(make(seed=SEED, offset=OFFSET)))
    assert recipes.rand((7,), key=key) is recipes.rand((7,), key=torch.zeros(2, dtype=torch.uint64))  # no part of a plan


DRAWS = [one for one in recipes.RECIPES.values() if "stream" in inspect.signature(one.make).parameters]


@pytest.mark.parametrize("one", DRAWS, ids=lambda one: one.name)
def test_each_part_of_a_key_that_is_not_passed_is_0(one):
    assert {name: inspect.signature(one.make).parameters[name].default for name in ("seed", "offset", "stream")} == {
        "seed": 0, "offset": 0, "stream": 0,
    }  # fmt: skip


def test_an_element_depends_on_its_place_alone_and_on_each_part_of_the_key():
    whole = drawn(recipes.rand((9, 8), seed=3))
    assert torch.equal(drawn(recipes.rand((5, 8), seed=3)), whole[:5])
    assert torch.equal(drawn(recipes.rand((7 * 8,), seed=3, offset=4)), whole.flatten()[16:])
    for other in ({"seed": 4}, {"seed": 3, "stream": 1}, {"seed": 3, "offset": 100}, {"seed": 3 + 2**40}):
        assert not bool((drawn(recipes.rand((9, 8), **other)) == whole).any())
    assert drawn(recipes.rand((4,), seed=-1)).tolist() == drawn(recipes.rand((4,), seed=2**64 - 1)).tolist()


def test_an_integer_is_its_share_of_64_bits():
    found = words(40)
    wide = [found[2 * i] << 32 | found[2 * i + 1] for i in range(20)]
    got = drawn(recipes.randint(-3, 2**31, (20,), seed=SEED, offset=OFFSET))
    assert got.tolist() == [bits * (2**31 + 3) // 2**64 - 3 for bits in wide]
    far = drawn(recipes.randint(-(2**62), 2**62, (20,), seed=SEED, offset=OFFSET))
    assert far.tolist() == [bits % 2**63 - 2**62 for bits in wide]
    assert drawn(recipes.randint(0, 1, (20,))).tolist() == [0] * 20
    assert drawn(recipes.randint_like(shaped(20, dtype="i16"), 100)).dtype == torch.int16


def distance(values, cdf):
    """Kolmogorov's, times the root of the count: above 1.95 once in 1000."""
    x = np.sort(values.double().numpy().ravel())
    want, n = np.vectorize(cdf)(x), len(x)
    apart = max((np.arange(1, n + 1) / n - want).max(), (want - np.arange(n) / n).max())
    return math.sqrt(n) * float(apart)


@pytest.mark.parametrize(
    ("make", "cdf"),
    [
        (lambda x: recipes.uniform(x, -2, 3, seed=11), lambda v: (v + 2) / 5),
        (lambda x: recipes.normal(x, 1.5, 2.0, seed=12), lambda v: 0.5 * math.erfc((1.5 - v) / 2 / math.sqrt(2))),
        (lambda x: recipes.log_normal(x, 0.5, 0.7, seed=13), lambda v: math.erfc((0.5 - math.log(v)) / 0.7 / 2**0.5) / 2),
        (lambda x: recipes.exponential_(x, 0.4, seed=14), lambda v: -math.expm1(-0.4 * v)),
        (lambda x: recipes.cauchy(x, -1.0, 3.0, seed=15), lambda v: 0.5 + math.atan((v + 1) / 3) / math.pi),
    ],
    ids=["uniform", "normal", "log_normal", "exponential", "cauchy"],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_distribution_is_that_of_its_name(make, cdf, dtype):
    assert distance(drawn(make(shaped(COUNT // 4, dtype=dtype))), cdf) < 1.95


def counts_apart(seen, want):
    """Chi-square over its degrees, as a normal deviation (Wilson and Hilferty)."""
    seen, want = np.asarray(seen, float), np.asarray(want, float)
    degrees = len(want) - 1
    chi = ((seen - want) ** 2 / want).sum() / degrees
    return (chi ** (1 / 3) - (1 - 2 / 9 / degrees)) / math.sqrt(2 / 9 / degrees)


def test_counts_are_those_of_the_probabilities():
    got = drawn(recipes.randint(0, 50, (COUNT,), seed=21))
    assert abs(counts_apart(torch.bincount(got), [COUNT / 50] * 50)) < 3.3
    trials = drawn(recipes.geometric(shaped(COUNT, dtype="i64"), 0.3, seed=22))
    assert int(trials.min()) == 1
    want = [COUNT * 0.3 * 0.7**i for i in range(15)]
    assert abs(counts_apart([int((trials == i + 1).sum()) for i in range(15)] + [int((trials > 15).sum())],
                            [*want, COUNT - sum(want)])) < 3.3  # fmt: skip
    chance = torch.tensor([0.0, 2**-30, 0.25, 0.9, 1.0])[:, None].expand(5, COUNT // 5).contiguous()
    hits = drawn(recipes.bernoulli(chance, seed=23), input=chance).sum(1).tolist()
    assert hits[0] == 0
    assert hits[4] == COUNT // 5
    assert all(
        abs(hit / (COUNT // 5) - p) < 4 * math.sqrt(p * (1 - p) / (COUNT // 5))
        for hit, p in zip(hits[2:4], (0.25, 0.9), strict=True)
    )
    weight = torch.tensor([[0.0, 1.0, 2.5, 0.5], [1e-6, 3e-6, 0.0, 4e-6]])
    token = drawn(recipes.multinomial(weight, COUNT // 4, True, seed=24), input=weight)
    for row, one in zip(token, weight, strict=True):
        assert abs(counts_apart(torch.bincount(row, minlength=4)[one > 0], (COUNT // 4 * one / one.sum())[one > 0])) < 3.3
        assert not bool((one[row] == 0).any())


def test_classes_of_equal_weight_win_equally_among_many():
    """The winner of many classes arrives early: a number of 24 bits would be too coarse."""
    weight = torch.ones(1, 2**16)
    token = drawn(recipes.multinomial(weight, 64, True, seed=31), input=weight)
    assert distance(token / 2.0**16, lambda v: v) < 1.95
    assert len(set(token.flatten().tolist())) > 60


def test_tails_are_open_and_finite():
    """Elements whose words are the smallest and largest among 2^20: an exponential is never 0, a normal never infinite."""
    made = drawn(recipes.exponential_(shaped(2**20, dtype="f32"), seed=41))
    assert float(made.min()) > 0
    assert math.log(2**20) - 3 < float(made.max()) < 23
    steps = made[made < 1e-3].double() * 2**24  # those of 2^-32 beside 0
    assert bool((steps != steps.round()).any())
    assert drawn(recipes.randn((2**20,), seed=42)).isfinite().all()


def test_dropouts_keep_the_mean_and_drop_whole_channels():
    x = torch.randn(64, 32, 6, 5, generator=torch.Generator().manual_seed(0)) + 3
    whole = ran(recipes.dropout, x, p=0.3, seed=51)[0]
    kept = drawn(recipes.rand(x.shape, seed=51)) >= torch.tensor(0.3)
    assert torch.equal(whole != 0, kept)
    torch.testing.assert_close(whole, torch.where(kept, x / 0.7, 0.0), rtol=3e-7, atol=0)
    channels = ran(recipes.dropout2d, x, p=0.3, seed=52)[0]
    once = (channels != 0).flatten(2)
    assert torch.equal(once.any(2), once.all(2))
    assert torch.equal(once.any(2), drawn(recipes.rand((64, 32), seed=52)) >= torch.tensor(0.3))
    assert torch.equal(ran(recipes.dropout, x, p=1.0)[0], torch.zeros_like(x))
    assert torch.equal(ran(recipes.dropout, x, p=0.0)[0], x)
    assert torch.equal(ran(recipes.dropout, x, p=0.4, training=False)[0], x)
    for name in ("alpha_dropout", "feature_alpha_dropout"):
        z = torch.randn(2000, 100, generator=torch.Generator().manual_seed(1)).repeat(1, 1)
        got = ran(getattr(recipes, name), z, p=0.2, seed=53)[0]
        assert abs(float(got.mean())) < 0.02
        assert abs(float(got.var()) - 1) < 0.03
    feature = ran(recipes.feature_alpha_dropout, x, p=0.5, seed=54)[0].flatten(2)
    flat = (feature == feature[..., :1]).all(2)
    assert 0.4 < float(flat.float().mean()) < 0.6


@pytest.mark.parametrize(
    ("make", "argument", "words"),
    [
        (lambda: recipes.rand((2,), key=shaped(2, dtype="i64")), "key", "a u64 tensor [seed, offset]"),
        (lambda: recipes.rand((2,), seed=2**64), "seed", "a 64-bit integer"),
        (lambda: recipes.rand((2,), dtype="i32"), "dtype", "one of f64"),
        (lambda: recipes.uniform(X, 3, 2), "high", "at least low"),
        (lambda: recipes.normal(X, 0, -1), "std", "0 or more"),
        (lambda: recipes.exponential_(X, 0), "lambd", "more than 0"),
        (lambda: recipes.geometric(X, 1), "p", "between 0 and 1"),
        (lambda: recipes.randint(5, 5, (2,)), "high", "above 5"),
        (lambda: recipes.dropout(X, 1.5), "p", "0 to 1"),
        (lambda: recipes.dropout2d(X), "input", "3 or 4 axes"),
        (lambda: recipes.multinomial(X, 2), "num_samples", "with replacement"),
    ],
)
def test_a_draw_without_a_meaning_is_refused(make, argument, words):
    with pytest.raises(DescriptorError) as caught:
        make()
    assert caught.value.issues[0].argument == argument
    assert words in str(caught.value)


def test_seeds_are_no_part_of_a_kernel():
    plans = [
        Plan.select(one, Preference(backend="cuda"), Target.parse("sm_90a"))
        for one in (recipes.randn((5, 3), seed=1), recipes.randn((9,), seed=2, offset=3, stream=4).model_copy())
    ]
    assert plans[0].sku.id != plans[1].sku.id  # another number of axes
    same = Plan.select(recipes.randn((9, 2), seed=2, offset=3), Preference(backend="cuda"), Target.parse("sm_90a"))
    assert same.jit_spec == plans[0].jit_spec


WEIGHTS = torch.tensor([[0.0, 1.0, 2.5, 0.5, 2.0], [1e-6, 3e-6, 0.0, 4e-6, 1.0]])
KERNELS = {
    "rand": (recipes.rand((5, 7), dtype="f16", seed=SEED, offset=OFFSET), {}),
    "randn": (recipes.randn((5, 7), seed=SEED), {}),
    "randn f64": (recipes.randn((5, 7), dtype="f64", seed=SEED), {}),
    "exponential": (recipes.exponential_(X, 0.7, seed=SEED), {}),
    "randint": (recipes.randint(-7, 2**40, (13,), seed=SEED), {}),
    "dropout": (recipes.dropout2d(torch.ones(2, 3, 2, 2), 0.5, seed=1), {"input": torch.ones(2, 3, 2, 2)}),
    "multinomial": (recipes.multinomial(WEIGHTS, 9, True, seed=SEED), {"input": WEIGHTS}),
    "key": (
        recipes.rand((5,), key=shaped(2, dtype="u64")), {"key": torch.tensor([SEED, OFFSET], dtype=torch.uint64)}
    ),
}  # fmt: skip


@emulator.needed
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_draws_what_the_reference_draws(name):
    made, tensors = KERNELS[name]
    args = opinfo.bundle(made, tensors)
    subject = emulator.subject(made)
    subject.run(args)
    got = made.written(args)[0]
    assert numerics.check(made, args, subject.plan.sku).worst <= 1
    torch.testing.assert_close(got, drawn(made, **tensors), rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 1023, 70001])
def test_torchs_stateless_generator_draws_the_same(dtype, count):
    stateless = pytest.importorskip("torch.func._random", reason="this torch has no stateless generator")
    key = stateless.key(SEED % 2**63, device="cuda")
    for made, want in (
        (recipes.rand((count,), dtype=dtype, key=key), stateless.uniform(key, count, dtype=DTYPES[dtype])),
        (recipes.randn((count,), dtype=dtype, key=key), stateless.normal(key, count, dtype=DTYPES[dtype])),
    ):
        args = opinfo.bundle(made, {"key": key})
        args = replace(args, out=torch.empty(count, dtype=DTYPES[dtype], device="cuda"))
        Plan.select(made, Preference(backend="cuda")).run(args)
        if made == recipes.rand((count,), dtype=dtype, key=key):
            assert torch.equal(args.out, want)
        else:  # torch's logarithm and sine of f32 are the approximate instructions
            torch.testing.assert_close(args.out, want, rtol=2.0 ** -min(SIGNIFICAND[dtype], 20) * 2, atol=2e-4)
