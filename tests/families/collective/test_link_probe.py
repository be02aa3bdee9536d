"""The rounds that the benchmark of links times, in the emulator: they count exactly the pieces with wrong content."""

import pytest
import torch

from opfacade.jit.spec import JitSpec
from tests import emulator
from tests.support.local_peers import Modules, on_peers

pytestmark = emulator.needed
SPEC, MODULES = JitSpec.of("link", "probes/link", "sm_90a"), Modules()
ROUNDS = ("places", "lines", "bare")
TIMES = 3


def wrong_of(group, probe, size, ctas=1):
    found = torch.zeros(3, dtype=torch.int64)
    MODULES.of(group.rank, SPEC).run(found, *group.link.round_of("probe"), size, TIMES, ROUNDS.index(probe), ctas)
    return found.tolist(), group.link.failed


@pytest.mark.parametrize("probe", ROUNDS)
def test_every_piece_of_a_peer_arrives(probe):
    found = on_peers(2, 1 << 10, lambda group: [wrong_of(group, probe, 16 * 7, ctas=2) for _ in range(2)], flagged=1 << 10)
    assert found == [[([0, 0, 0], (0, 0))] * 2] * 2


def test_a_piece_that_no_peer_sends_is_counted_as_wrong_in_each_round():
    found = on_peers(2, 1 << 10, lambda group: wrong_of(group, "places", 16 * (5, 3)[group.rank]))
    assert found == [([2 * TIMES, 0, 0], (0, 0)), ([0, 0, 0], (0, 0))]
