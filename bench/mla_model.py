"""How long latent decode takes for a tile, in a model of one SM: `python -m bench.mla_model`. No measurement.

Tensor cores make the products of either computing warpgroup in their order and share their time evenly between the two; a
product of scores is bound by shared memory, so all are stretched by what shared memory needs over what products need. A box is
asked for when the piece before it is given back, arrives a latency later, and boxes come one after the other. A warpgroup does
what kernels/mla/decode.cuh does. It says which order of things is better and where time goes, not what a GPU will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

PRODUCTS, SHARED = 2176, 2432  # cycles of a tile: docs/mla.md
PEAK = 790.0  # TFLOP/s
STEP = 4
_PANELS, _PANEL_BYTES, _SCORES, _VALUES = (4, 4, 1), 8192, 128, 512
Condition = Callable[[], bool]


@dataclass
class Sm:
    """latency: cycles until a box arrives. rate: its bytes a cycle. softmax, signal: cycles. panels: of a box of latents."""

    latency: int = 1000
    rate: float = 48.0
    softmax: int = 700
    signal: int = 60
    panels: int = 1
    tiles: int = 64
    now: int = 0
    channel: float = 0.0
    queues: tuple[list[list[float]], list[list[float]]] = field(default_factory=lambda: ([], []))
    arrives: dict[tuple[int, int], float] = field(default_factory=dict)  # (tile, panel)
    weighed: set[int] = field(default_factory=set)
    given: dict[int, int] = field(default_factory=dict)  # groups that are done with a tile

    def ask(self, tile: int, piece: int) -> None:
        """The boxes of a piece."""
        step = min(self.panels, _PANELS[piece])
        for panel in range(0, _PANELS[piece] if tile < self.tiles else 0, step):
            time = step * _PANEL_BYTES / self.rate
            self.channel = max(self.channel, self.now) + time
            for i in range(step):
                self.arrives[tile, piece * 4 + panel + i] = max(self.channel, self.now + self.latency + time)

    def give_back(self, group: int, tile: int) -> None:
        self.ask(tile + 2, group)
        self.given[tile] = self.given.get(tile, 0) + 1
        if self.given[tile] == 2:
            self.ask(tile + 2, 2)

    def issue(self, group: int, cycles: float) -> list[float]:
        job = [cycles * SHARED / PRODUCTS]
        self.queues[group].append(job)
        return job

    def after(self, cycles: int) -> Condition:
        end = self.now + cycles
        return lambda: self.now >= end

    def scores(self, group: int, tile: int, held: list[float] | None) -> Iterator[Condition]:
        for panel in range(9):
            yield lambda panel=panel: self.now >= self.arrives.get((tile, panel), float("inf"))  # type: ignore[misc]
            job = self.issue(group, _SCORES)
            if panel == 0 and held is not None:
                yield lambda: held[0] <= 0
                self.give_back(group, tile - 1)
        yield lambda: job[0] <= 0

    def first(self) -> Iterator[Condition]:
        held: list[float] | None = None
        for tile in range(0, self.tiles, 2):
            yield from self.scores(0, tile, held)
            yield self.after(self.softmax + self.signal)
            self.weighed.add(tile)
            own = self.issue(0, _VALUES)
            late = tile + 1 not in self.weighed
            if late:
                yield lambda own=own: own[0] <= 0  # type: ignore[misc]
                self.give_back(0, tile)
            yield lambda tile=tile: tile + 1 in self.weighed  # type: ignore[misc]
            yield self.after(self.signal)
            held = self.issue(0, _VALUES)
            if not late:
                yield lambda own=own: own[0] <= 0  # type: ignore[misc]
                self.give_back(0, tile)
            if (tile + 2, 0) not in self.arrives or self.arrives[tile + 2, 0] > self.now:
                yield lambda held=held: held[0] <= 0  # type: ignore[misc]
                self.give_back(0, tile + 1)
                held = None

    def second(self) -> Iterator[Condition]:
        for tile in range(1, self.tiles, 2):
            yield from self.scores(1, tile, None)
            yield lambda tile=tile: tile - 1 in self.weighed  # type: ignore[misc]
            yield self.after(self.signal)
            other = self.issue(1, _VALUES)
            yield self.after(self.softmax + self.signal)
            self.weighed.add(tile)
            own = self.issue(1, _VALUES)
            yield lambda other=other: other[0] <= 0  # type: ignore[misc]
            self.give_back(1, tile - 1)
            yield lambda own=own: own[0] <= 0  # type: ignore[misc]
            self.give_back(1, tile)

    def run(self) -> int:
        """Cycles until both warpgroups have taken all tiles."""
        for tile in (0, 1):
            for piece in range(3):
                self.ask(tile, piece)
        work = [self.first(), self.second()]
        waits: list[Condition | None] = [next(program) for program in work]
        while any(waits):
            busy = [queue for queue in self.queues if queue]
            for queue in busy:
                queue[0][0] -= STEP / len(busy)
                if queue[0][0] <= 0:
                    queue.pop(0)
            self.now += STEP
            for group in (0, 1):
                while (wait := waits[group]) is not None and wait():
                    waits[group] = next(work[group], None)
        return self.now


def cycles(**facts: float) -> float:
    """Of a tile, in the steady state."""
    few, many = (Sm(tiles=tiles, **facts).run() for tiles in (32, 96))  # type: ignore[arg-type]
    return (many - few) / 64


def main() -> None:
    print("latency rate softmax panels   cycles  TFLOP/s")
    for latency, rate in ((700, 64), (1000, 48), (1400, 48)):
        for softmax in (500, 700, 1000):
            for panels in (4, 1):
                tile = cycles(latency=latency, rate=rate, softmax=softmax, panels=panels)
                print(f"{latency:7} {rate:4} {softmax:7} {panels:6} {tile:8.0f} {PEAK * PRODUCTS / tile:8.0f}")


if __name__ == "__main__":
    main()
