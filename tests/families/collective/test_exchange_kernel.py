"""The emulated exchange of bytes: in both formats every rank receives the bytes of all ranks, and an error names a missing
rank."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed._symmetric_memory as symmetric

from opfacade.core.joined import bytes_of_lines, in_lines
from opfacade.distributed import peers
from opfacade.jit.spec import JitSpec
from tests import emulator
from tests.support.local_peers import Modules, on_peers
from tests.support.local_ranks import on_ranks

pytestmark = emulator.needed
SPEC, MODULES = JitSpec.of("exchange", "ranks/exchange", "sm_90a"), Modules()
WAYS = [pytest.param(0, id="bulk"), pytest.param(1, id="lines")]


def parts(rank, world, size, each):
    """The bytes that a rank sends, equal or different for each receiver; some bytes look like flags of earlier rounds."""
    g = torch.Generator().manual_seed(rank)
    made = torch.randint(0, 256, (world if each else 1, size), generator=g, dtype=torch.uint8)
    made[:, 4:8] = torch.tensor([2, 0, 0, 0], dtype=torch.uint8)
    return made


def swap(group, sent, flagged, facts=None):
    found = torch.full((group.world, sent.shape[1]), 7, dtype=torch.uint8)
    step = sent.shape[1] if len(sent) > 1 else 0
    words = (0 if facts is None else facts.data_ptr(), step, flagged)
    MODULES.of(group.rank, SPEC).run(sent, found, *group.link.round_of("exchange"), *words)
    return found


@pytest.mark.parametrize("flagged", WAYS)
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("world", [2, 3, 7])
def test_every_rank_receives_the_bytes_of_all_ranks(world, each, flagged):
    """The second of three consecutive calls sends fewer bytes, so bytes of the first call would be noticed in its result."""
    sizes = (16 * 700, 16 * 5, 16)

    def calls(group):
        return [swap(group, parts(group.rank, world, size, each), flagged) for size in sizes]

    for rank, found in enumerate(on_peers(world, 16 * 700, calls, flagged=bytes_of_lines(16 * 700))):
        for size, got in zip(sizes, found, strict=True):
            want = [parts(source, world, size, each)[rank if each else 0] for source in range(world)]
            assert torch.equal(got, torch.stack(want))


def test_lines_take_whole_groups_of_chunks():
    assert [bytes_of_lines(size) for size in (16, 512, 513, 16 * 700)] == [1024, 1024, 2048, 2 * 16 * 704]


def test_lines_are_for_as_many_bytes_as_a_rank_receives_before_a_fence_is_faster():
    """(bytes to each rank, ranks, bytes of lines that a rank may receive, bytes of lines per rank in an arena)"""
    assert in_lines(512, 2, 1024, 1024)
    assert not in_lines(513, 2, 1024, 4096)
    assert not in_lines(513, 2, 4096, 1024)
    assert in_lines(512, 4, 3072, 1024)
    assert not in_lines(512, 4, 3071, 4096)


@pytest.mark.parametrize("flagged", WAYS)
@pytest.mark.parametrize(("act", "told"), [("stays away", (0b10, 0)), ("other plan", (0, 0b10)), ("other facts", (0, 0b10))])
def test_an_error_names_a_rank_that_is_missing_or_has_another_plan(act, told, flagged):
    def call(group):
        odd = group.rank == 1
        if odd and act == "stays away":
            return None
        group.link.digest = 8 if odd and act == "other plan" else 7
        facts = torch.tensor([5 + (odd and act == "other facts")])
        return swap(group, parts(group.rank, 2, 64, False), flagged, facts), group.link.failed

    found, failed = on_peers(2, 1 << 10, call, patience_s=0.5, flagged=bytes_of_lines(64))[0]
    assert failed == told
    assert (found == 0xFF).all()


def links_of(world, monkeypatch):
    """The link of each rank of a group; the arenas are memory of this process."""
    arenas, made = SimpleNamespace(buffer_ptrs=[]), []
    monkeypatch.setattr(symmetric, "empty", lambda *given, **more: torch.empty(*given, **more))
    monkeypatch.setattr(symmetric, "rendezvous", lambda arena, name: (arenas.buffer_ptrs.append(arena.data_ptr()), arenas)[1])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    for rank in range(world):
        monkeypatch.setattr(peers, "_module", lambda device, rank=rank: MODULES.of(rank, SPEC))
        group = SimpleNamespace(size=lambda: world, rank=lambda rank=rank: rank, group_name="here")
        made.append(peers.PeerLink(group, torch.device("cpu"), 20.0))
        made[-1].learn("exchange", bytes(range(8)))
    return made


@pytest.mark.parametrize("world", [2, 3])
def test_the_link_of_a_group_gathers_and_exchanges_parts(world, monkeypatch):
    """The sizes are not multiples of a line. The content of a part encodes its sender and its receiver."""
    links = links_of(world, monkeypatch)
    part = lambda source, to: torch.arange(5) + 100 * source + 10 * to  # noqa: E731
    ranks = range(world)

    def call(group):
        link, own = links[group.rank], [part(group.rank, to) for to in ranks]
        return link.gathered("exchange", own[0], ()), link.swapped("exchange", own, own[0], (torch.tensor([3]),))

    for rank, (gathered, swapped) in enumerate(on_ranks(world, call)):
        assert torch.equal(torch.stack(gathered), torch.stack([part(source, 0) for source in ranks]))
        assert torch.equal(torch.stack(swapped), torch.stack([part(source, rank) for source in ranks]))
        assert (links[rank].ended, links[rank].failed, links[rank].odd) == (2, (), ())
