"""Division by a factor without a division instruction gives the byte of a division."""

import ctypes
import math
import subprocess

import pytest
import torch

from tests import emulator
from tests.emulator import ROOT

pytestmark = emulator.needed

SPECIAL = [0.0, math.inf, math.nan, 1.0, 2.0**-149, 2.0**-126, 2.0**-30, 2.0**30, 3e38, 1e-39, 448.0, 57344.0, 464.0, 2.0**-10]


@pytest.fixture(scope="module")
def count(tmp_path_factory):
    """count(xs, factors, kind, exact) returns how many of the quotients xs / factors are wrong."""
    out = tmp_path_factory.mktemp("quotient") / "quotient.so"
    flags = ["-std=c++20", "-O2", "-march=native", "-ffp-contract=off", "-w", "-shared", "-fPIC"]
    includes = ["-I", ROOT / "tests/emulator", "-I", ROOT]
    source = ROOT / "tests/families/kv_cache/quotient.cc"
    subprocess.run([emulator.compiler(), *flags, *includes, "-o", out, source], check=True)
    library = ctypes.CDLL(str(out))

    def call(xs, factors, kind, exact):
        function = getattr(library, f"wrong_{kind}")
        function.restype = ctypes.c_long
        pairs = [(ctypes.c_void_p(t.data_ptr()), ctypes.c_long(t.numel())) for t in (xs, factors)]
        return function(*pairs[0], *pairs[1], ctypes.c_bool(exact))

    return call


def significands(bits):
    """All numbers in [1, 2) whose significand has `bits` bits."""
    return 1 + torch.arange(2 ** (bits - 1)) / 2 ** (bits - 1)


def patterns(count, seed):
    """f32 numbers with random bits: all exponents, NaN and infinities occur."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (count,), generator=generator).to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("bits", [8, pytest.param(11, marks=pytest.mark.heavy)])
def test_short_significands_are_divided_exactly_with_one_correction(count, bits):
    """All significands are divided by all factors of a binade; a short test run takes some of the factors."""
    step = 1 if bits == 11 else 16
    factors = (torch.arange(0, 2**23, step, dtype=torch.int32) + 0x3F800000).view(torch.float32)
    assert count(significands(bits), factors, "short", True) == 0


def test_long_significands_are_divided_exactly(count):
    generator = torch.Generator().manual_seed(1)
    xs, factors = (1 + torch.rand(3000, generator=generator) for _ in range(2))
    ends = torch.tensor([1.0, 1 + 2.0**-23, 2 - 2.0**-23, 2 - 2.0**-22, 1.5])
    assert count(torch.cat([xs, ends]), torch.cat([factors, ends]), "long", True) == 0


@pytest.mark.parametrize("kind", ["short", "long"])
def test_every_exponent_gives_the_byte_of_a_division(count, kind):
    special = torch.tensor(SPECIAL)
    xs = torch.cat([special, -special, patterns(1500, 2)])
    if kind == "short":
        xs = torch.cat([xs.bfloat16().float(), xs.half().float()])
    factors = torch.cat([special, -special, patterns(1500, 3), torch.rand(200)])
    assert count(xs, factors, kind, False) == 0


def test_quotients_that_are_ties_of_fp8_are_rounded_exactly(count):
    """The quotient of x = tie * factor is the tie, so the last bit of the quotient decides the byte."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (codes[1:] + codes[:-1]) / 2
    factors = torch.tensor([0.5, 1.0, 1.25, 3.0, 7.0, 0.375, 2.0**40, 2.0**-40])
    xs = (ties[:, None] * factors).flatten()
    near = torch.cat([xs, xs.nextafter(torch.tensor(math.inf)), xs.nextafter(torch.tensor(0.0))])
    assert count(near, factors, "long", False) == 0
