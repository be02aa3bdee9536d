"""P2 with our own writes, P3 and P6: rounds of only the protocol, packets that may be seen in parts, and the cost of a
header."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench.ranks.process import Ranks
from bench.ranks.race import race
from opfacade import jit
from opfacade.core.target import Target
from opfacade.distributed import Group
from opfacade.distributed.peers import PeerLink
from opfacade.jit.spec import JitSpec

NAMES = ("rounds_places", "rounds_lines", "rounds_bare", "packets_8", "packets_16", "packets_128")
BYTES, CTAS, MANY = (1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 21), (8, 32, 64), 20
PACKETS, SLOTS = 10**9, 16 * 512  # packets per size, and threads that write them
_ON_CPUS = {"failed": "on CPUs there is no memory of peers"}


def specs() -> tuple[JitSpec, ...]:
    """The kernels of the probes, and of the rounds of every group."""
    arch = Target.current().arch
    return (JitSpec.of("link", "probes/link", arch), JitSpec.of("exchange", "ranks/exchange", arch))


class Probe:
    """The probes of one group. found: the words in which kernels count."""

    def __init__(self, ranks: Ranks) -> None:
        import torch

        group = Group(ranks.join(), timeout_s=20, peer_memory=True)
        self.group, self.link = group, group.link
        if not isinstance(self.link, PeerLink):
            raise RuntimeError("the ranks cannot write to the memory of peers")
        self.link.learn("probe", bytes(8))
        self.module = jit.load(specs()[0])
        self.module.prepare(ranks.rank)
        self.found = torch.zeros(3, dtype=torch.int64, device=ranks.device)

    def run(self, name: str, size: int, times: int, ctas: int) -> None:
        assert isinstance(self.link, PeerLink)
        self.module.run(self.found, *self.link.round_of("probe"), size, times, NAMES.index(name), ctas)

    def call(self, name: str, size: int, times: int, ctas: int) -> Callable[[], None]:
        return lambda: self.run(name, size, times, ctas)

    def taken(self) -> list[int]:
        import torch

        torch.cuda.synchronize()
        words: list[int] = self.found.tolist()
        self.found.zero_()
        return words


def rounds(ranks: Ranks) -> dict[str, Any]:
    """P2: the time of a round in each format, by bytes and CTAs, alone in a launch and as one of many, and a linear fit."""
    if ranks.cpu:
        return _ON_CPUS
    probe, found = Probe(ranks), {}
    room = {"rounds_places": PeerLink.place, "rounds_lines": PeerLink.flagged // 2}
    for size in BYTES:
        kinds = [name for name, most in room.items() if size <= most]
        calls = {
            f"{name}, {ctas} CTAs, {times}": probe.call(name, size, times, ctas)
            for name in kinds
            for ctas in CTAS
            for times in (1, MANY)
        }
        times = race(ranks, calls, 10)
        wrong = probe.taken()[0]
        found[str(size)] = {"wrong": wrong} if wrong else times
        ranks.keep({"bytes": found})
    probe.group.check()
    return {"bytes": found, "fit": fitted(found, ranks.world)}


def fitted(found: dict[str, Any], world: int) -> dict[str, Any]:
    """a1 and a2 in us, b in GB/s, by least squares over the fastest times per size, of a round alone and of one of many."""
    sizes = [int(size) for size, one in found.items() if "wrong" not in one]
    lines = {}
    for times, name in ((1, "a1"), (MANY, "a2")):
        least = [_least(found[str(size)], times) / times for size in sizes]
        a, slope = line_of([(world - 1) * size for size in sizes], least)
        lines |= {name: a, f"b of {name}": 1e-3 / slope if slope > 0 else 0.0}
    return lines


def _least(one: dict[str, Any], times: int) -> float:
    return min(value["us"] for name, value in one.items() if name.endswith(f", {times}") and "us" in value)


def line_of(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """(y at 0, slope) of the line with the smallest sum of squared relative errors."""
    weight = [1 / one**2 for one in y]
    total = sum(weight)
    mx = sum(w * a for w, a in zip(weight, x, strict=True)) / total
    my = sum(w * b for w, b in zip(weight, y, strict=True)) / total
    spread = sum(w * (a - mx) ** 2 for w, a in zip(weight, x, strict=True))
    slope = sum(w * (a - mx) * (b - my) for w, a, b in zip(weight, x, y, strict=True)) / spread if spread else 0.0
    return my - slope * mx, slope


def packets(ranks: Ranks) -> dict[str, Any]:
    """P3: whether a store of 8, 16 or 128 bytes (by a warp) can be seen in parts; every rank writes to the next rank and reads
    its own memory."""
    if ranks.cpu:
        return _ON_CPUS
    import time

    probe, found = Probe(ranks), {}
    for size in (8, 16, 128):
        slots = SLOTS if size < 128 else SLOTS // 32
        times = PACKETS // SLOTS
        _blank(probe)
        ranks.meet()
        start = time.monotonic()
        probe.run(f"packets_{size}", size, times, 32)
        seen, torn, late = probe.taken()
        sums = ranks.slowest([float(torn), float(late), -float(seen)])
        found[str(size)] = {"packets": times * slots, "seen": -int(sums[2]), "torn": int(sums[0]), "readers_late": int(sums[1])}
        found[str(size)]["ms"] = (time.monotonic() - start) * 1e3
        ranks.keep({"bytes": found})
    return {"bytes": found}


def _blank(probe: Probe) -> None:
    """Zeros the memory for packets. No round may be in flight; later rounds do not need old contents."""
    assert isinstance(probe.link, PeerLink)
    probe.link.blank()


def header(ranks: Ranks) -> dict[str, Any]:
    """P6: flagged lines with and without a compared header, at 8 KB and at the largest size for lines."""
    if ranks.cpu:
        return _ON_CPUS
    probe, found = Probe(ranks), {}
    for size in (1 << 13, PeerLink.flagged // 2):
        calls = {name: probe.call(f"rounds_{name}", size, 1, 32) for name in ("lines", "bare")}
        times = race(ranks, calls, MANY)
        wrong = probe.taken()[0]
        found[str(size)] = {"wrong": wrong} if wrong else times
        if not wrong:
            found[str(size)]["us_of_a_header"] = times["lines"]["us"] - times["bare"]["us"]
    probe.group.check()
    return {"bytes": found}
