"""Bounds of a front alone, in a small kernel (tests/emulator/front.cc): margins hide small errors from the tests of draws."""

import math

import numpy as np
import pytest
import torch

from tests import emulator
from tests.emulator.parts import library, numbers

pytestmark = emulator.needed


def found(octaves, keys):
    """The base, the lift, the largest words of the noted token and of the one that follows it, and the bits of the bounds."""
    given = [torch.tensor(values, dtype=torch.float32) for values in (octaves, keys)]
    out = numbers((library("front"), "run_bounds"), 4 + len(keys), *given, len(keys))
    base, lift = out[:2].view(torch.float32).tolist()
    return base, lift, [word & 0xFFFFFFFF for word in out[2:4].tolist()], out[4:]


@pytest.mark.parametrize("most", [1.0, 14.3, -700.0, 2.0**20])
def test_a_bound_has_the_bits_of_the_key_less_the_lift(most):
    keys = [0.0, 31.0, 33.0, 256.0, 271.25, 290.7, 300.01, 511.9, 700.3]
    _, lift, _, bounds = found([most - 20, most, most - 1, most - 9], keys)
    assert lift == np.float32(np.float32(abs(most)) * np.float32(2.0**-19) + np.float32(32 + 2.0**-5))
    want = np.maximum(np.array(keys, dtype=np.float32) - np.float32(lift), np.float32(0))
    assert bounds.numpy().tolist() == want.view(np.int32).tolist()


@pytest.mark.parametrize("lead", [0.5, 3.0, 11.7, 25.0])
def test_a_token_is_examined_exactly_if_its_word_can_reach_a_better_key(lead):
    """lead: octaves from the token to the key of a more likely one. A bound that is too high loses a token of the front, and
    one that is too low lets others pass."""
    most = 12.0
    base = found([most - 30, most, most - 1, most - 9], [0.0])[0]
    _, _, words, _ = found([most - 30, most, most - 1, most - 9], [most - 9 - base + lead])
    reaches = 2.0**32 * -math.expm1(-(2.0**-lead))  # the largest word whose noise is at least `lead`
    assert words[1] >= math.floor(reaches - 0.5)
    assert words[1] <= 2.0 ** (32 - lead) * 2.0**0.04 + 1


def test_a_noted_token_raises_no_bound_of_a_token_as_likely():
    _, _, words, _ = found([-18.0, 12.0, 11.0, 3.0], [400.0])
    assert words == [0xFFFFFFFF, 0]
