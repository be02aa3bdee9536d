"""The classes of kernels/pipeline, tested alone in small kernels (pipeline.cc)."""

import pytest
import torch

from tests import emulator
from tests.emulator.parts import library, numbers

pytestmark = emulator.needed

STEPS = 11  # more than three times around a ring of three stages, and twice around a queue of four


@pytest.mark.parametrize("backwards", ["", "1"])
def test_each_reader_of_a_ring_reads_every_stage_once(monkeypatch, backwards):
    monkeypatch.setenv("SIMT_BACKWARDS", backwards)
    found = numbers((library("pipeline"), "run_ring"), 2 * STEPS * 32, STEPS).view(2, STEPS, 32)
    lanes = torch.arange(32) ^ 1
    assert torch.equal(found[0], (100 * torch.arange(STEPS)[:, None] + lanes).int())
    assert torch.equal(found[0], found[1])


def test_a_ring_uses_all_stages_in_turn_and_the_parity_changes_with_each_round():
    *places, fences = numbers((library("pipeline"), "run_positions"), 2 * STEPS + 1, STEPS).tolist()
    assert places == [one for step in range(STEPS) for one in (step % 3, step // 3 % 2)]
    assert fences == 1, "TMA and tensor cores may miss writes without a fence"


def test_a_ring_begins_empty_and_an_arrival_fills_it():
    """At first the stage is empty and not full; after an arrival it is full and not empty."""
    assert numbers((library("pipeline"), "run_tests"), 1, 0).tolist() == [0b0110]


@pytest.mark.parametrize("backwards", ["", "1"])
def test_each_reader_of_a_queue_reads_every_item_once(monkeypatch, backwards):
    monkeypatch.setenv("SIMT_BACKWARDS", backwards)
    found = numbers((library("pipeline"), "run_queue"), 2 * STEPS * 32, STEPS).view(2, STEPS, 32)
    assert torch.equal(found, (7 * torch.arange(STEPS))[None, :, None].expand(2, -1, 32).int())
