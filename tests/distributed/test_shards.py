"""Sharded caches and shares of a prefill over processes, on gloo and on one GPU each: results equal those of one rank."""

from functools import partial

import pytest
import torch

from tests.distributed import shard_scenarios, worlds

TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs")
PLACES = [pytest.param(False, id="cpus"), pytest.param(True, id="gpus", marks=[pytest.mark.gpu, TWO_GPUS])]


def ran(tmp_path, scenario, cuda, world=2):
    """On GPUs, the ranks compile their kernels first."""
    backend, seconds = (worlds.NCCL, 240) if cuda else ("gloo", 60)
    shown = partial(shard_scenarios.run, scenario=scenario, cuda=cuda)
    return worlds.run(tmp_path, world, shown, seconds=seconds, backend=backend)


@pytest.mark.parametrize("cuda", PLACES)
def test_a_prefill_over_gathered_rows_is_that_of_one_rank(tmp_path, cuda):
    """Kernels have the bits of one rank; torch's products on a CPU have other bits for other numbers of rows."""
    for own in ran(tmp_path, "prefill", cuda).values():
        assert own["cache"]
        assert own["near"]
        assert own["bits"] or not cuda


@pytest.mark.parametrize("cuda", PLACES)
@pytest.mark.parametrize("scenario", ["decode", "prefix_by_queries"])
def test_attention_over_shards_below_a_page_is_that_of_one_rank(tmp_path, cuda, scenario):
    found = ran(tmp_path, scenario, cuda)
    assert all(own["near"] for own in found.values())
    assert found[0]["o"] == found[1]["o"]
    assert all(own["impl"] == ("peers" if cuda else "torch") for own in found.values())
