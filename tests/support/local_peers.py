"""Ranks that write to peer memory, as threads: each has its own copy of the emulated library and its globals."""

import shutil
import threading
from pathlib import Path
from tempfile import mkdtemp

import torch
import tvm_ffi

from opfacade.distributed import peers
from tests import emulator
from tests.support.local_ranks import LocalGroup, on_ranks

_MOST_RANKS = 8
_BEGUN, _ENDED, _POISON, _ODD, _FAILED = range(5)


class LocalPeers:
    """A link of one rank; all ranks share `arenas`. place, flagged: bytes, small so that calls take several launches."""

    def __init__(self, rank, arenas, place, patience_s=20.0, digest=7, flagged=0):
        self.device, self.place, self._rank, self._arenas = torch.device("cpu"), place, rank, arenas
        self.flagged = flagged
        self._epochs, self._bad = (
            torch.zeros(peers.MOST_CTAS + peers.COUNTERS, dtype=torch.int64),
            torch.zeros((), dtype=torch.bool),
        )
        self._page = torch.zeros(_FAILED + peers.MOST_CTAS, dtype=torch.int64)
        self._patience, self.digest, self.launches = int(patience_s * 1e9), digest, 0

    def start_at(self, epoch):
        self._epochs[: peers.MOST_CTAS] = epoch

    def round_of(self, descriptor):
        self.launches += 1
        own = (self.place, self.flagged, self.digest, self._patience, self._rank, len(self._arenas))
        return (self._epochs, self._bad, self._page.data_ptr(), *own, *[a.data_ptr() for a in self._arenas])

    @property
    def counters(self):
        """(bytes sent, ns waited by rank, times last by rank)"""
        sent, *rest = self._epochs[peers.MOST_CTAS :].tolist()
        world = len(self._arenas)
        return sent, rest[:world], rest[peers.MOST_PEERS :][:world]

    @property
    def failed(self):
        """(ranks that did not arrive, ranks that differ), as bits."""
        mask = 0
        for ranks in self._page[_FAILED:].tolist():
            mask |= ranks
        return mask, int(self._page[_ODD])


class PeerGroup(LocalGroup):
    def __init__(self, group, link):
        super().__init__(group.rank, group.world, group._shared)
        self.link = link

    def on_gpus(self, descriptor, call):
        return call()


def arenas_of(world, place, flagged=0):
    """Arenas filled with a pattern that no call sends, except words of arrivals and flagged lines, which are 0."""
    head = 2 * _MOST_RANKS * peers.MOST_CTAS * 32
    bulk = head + 2 * world * place
    size = bulk + 2 * world * flagged
    made = [torch.full((size + 64,), 0x5B, dtype=torch.uint8) for _ in range(world)]
    found = [arena[-arena.data_ptr() % 64 :][:size] for arena in made]
    for arena in found:
        arena[:head], arena[bulk:] = 0, 0
    return found


class Modules:
    """Copies of emulated libraries, one for each rank and spec."""

    def __init__(self):
        self._folder, self._known, self._lock = Path(mkdtemp(prefix="opfacade-ranks-")), {}, threading.Lock()

    def of(self, rank, spec):
        with self._lock:
            if (rank, spec) not in self._known:
                path = self._folder / f"{rank}-{len(self._known)}.so"
                shutil.copy(emulator.whole(spec), path)
                self._known[rank, spec] = _Module(tvm_ffi.load_module(str(path)))
            return self._known[rank, spec]


class _Module:
    def __init__(self, module):
        self._run = module.run

    def run(self, *given):
        held = []
        self._run(*[emulator.cuda_view(one, held) if isinstance(one, torch.Tensor) else one for one in given])


def on_peers(world, place, call, **options):
    """[call(group)] of every rank, each with a link by memory."""
    arenas = arenas_of(world, place, options.get("flagged", 0))
    return on_ranks(world, lambda group: call(PeerGroup(group, LocalPeers(group.rank, arenas, place, **options))))
