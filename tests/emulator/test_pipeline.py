"""The pieces of kernels/pipeline by themselves, in small kernels (pipeline.cc)."""

import ctypes
import os
import subprocess
from functools import cache

import pytest
import torch

from tests import emulator
from tests.emulator import builds

pytestmark = emulator.needed

STEPS = 11  # more than three times around a ring of three, and twice around a queue of four


@cache
def pieces(name, *flags):
    """The library of tests/emulator/<name>.cc."""
    made = builds.place() / f"pieces-{name}-{os.getpid()}.so"
    folders = (emulator.ROOT / "tests/emulator", emulator.ROOT)
    includes = [token for folder in folders for token in ("-I", str(folder))]
    runtime = str(builds.runtime(emulator.compiler(), tuple(includes)))
    source = str(emulator.ROOT / "tests/emulator" / f"{name}.cc")
    words = [emulator.compiler(), *builds.FLAGS, "-O1", *flags, "-shared", *includes, source, runtime, "-nodefaultlibs"]
    subprocess.run([*words, "-lstdc++", "-lc", "-o", str(made)], check=True, capture_output=True, timeout=120)
    return ctypes.CDLL(str(made))


def numbers(run, count, *args):
    out = torch.full((count,), -1, dtype=torch.int32)
    assert getattr(*run)(ctypes.c_void_p(out.data_ptr()), *args), "threads wait for ever"
    return out


@pytest.mark.parametrize("backwards", ["", "1"])
def test_each_reader_of_a_ring_reads_every_stage_once(monkeypatch, backwards):
    monkeypatch.setenv("SIMT_BACKWARDS", backwards)
    found = numbers((pieces("pipeline"), "run_ring"), 2 * STEPS * 32, STEPS).view(2, STEPS, 32)
    lanes = torch.arange(32) ^ 1
    assert torch.equal(found[0], (100 * torch.arange(STEPS)[:, None] + lanes).int())
    assert torch.equal(found[0], found[1])


def test_a_ring_uses_all_stages_in_turn_and_the_parity_changes_with_each_round():
    *places, fences = numbers((pieces("pipeline"), "run_positions"), 2 * STEPS + 1, STEPS).tolist()
    assert places == [one for step in range(STEPS) for one in (step % 3, step // 3 % 2)]
    assert fences == 1, "TMA and tensor cores may miss writes without a fence"


def test_a_ring_begins_empty_and_an_arrival_fills_it():
    """Before: an empty stage, which is not full. After: the other way around."""
    assert numbers((pieces("pipeline"), "run_tests"), 1, 0).tolist() == [0b0110]


@pytest.mark.parametrize("backwards", ["", "1"])
def test_each_reader_of_a_queue_has_every_item_once(monkeypatch, backwards):
    monkeypatch.setenv("SIMT_BACKWARDS", backwards)
    found = numbers((pieces("pipeline"), "run_queue"), 2 * STEPS * 32, STEPS).view(2, STEPS, 32)
    assert torch.equal(found, (7 * torch.arange(STEPS))[None, :, None].expand(2, -1, 32).int())
