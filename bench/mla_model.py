"""Time of a latent decode tile in a model of one SM: `python -m bench.mla_model`. No measurement.

The score group computes scores and weights of a tile of 32 tokens, two value groups accumulate its values, as in
kernels/mla/decode.cuh. Tensor cores execute products in order of issue. A value group issues all products of a tile together.
The score group may have only a few short products in flight and then waits, so it progresses slowly while value products run,
but its issued products precede the value products for weights that it publishes later. Copies take part of the shared memory
bandwidth, which slows products that need more than the rest. A tile is loaded when all three groups have released its stage,
and arrives one latency later, in order. The model ranks schedules and shows where time goes; it does not predict a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, get_args

PEAK = 790.0  # TFLOP/s
STEP = 4
_WIDTH = 128  # bytes of shared memory bandwidth per cycle
_COPIED, _WEIGHTS = 36 * 1024, 4 * 1024  # bytes of a tile, written to shared memory
# Cycles and bytes read of one product: scores with queries in registers, scores with queries in shared memory, values.
_KEPT, _OTHER, _VALUES = (19, 1024), (24, 3072), (64, 6144)
PRODUCTS = 36 * 16 + 2 * 4 * 64  # cycles of a tile: tensor cores for scores and values, and shared memory for all
SHARED = (20 * _KEPT[1] + 16 * _OTHER[1] + 2 * 4 * _VALUES[1] + _COPIED + _WEIGHTS) // _WIDTH
Condition = Callable[[], bool]
# weights are published: when stored, when the next scores are issued, or when they are computed
Show = Literal["put", "asked", "made"]


class Product:
    def __init__(self, cycles: int, read: int) -> None:
        self.left, self.wants = float(cycles), read / cycles  # cycles, bytes per cycle


def _no_more(cycles: float, products: list[Product]) -> Condition:
    return lambda: sum(product.left for product in products) <= cycles


@dataclass
class Sm:
    """latency: cycles until a tile begins to arrive. rate: its bytes per cycle. softmax: cycles from scores to stored weights.
    asking: cycles that the score group needs for scores without contention. signal: cycles from published weights to the
    products that use them."""

    show: Show = "asked"
    latency: int = 1000
    rate: float = 48.0
    softmax: int = 580
    asking: int = 530
    signal: int = 160
    stages: int = 5
    tiles: int = 64
    now: int = 0
    channel: float = 0.0
    queue: list[Product] = field(default_factory=list)
    comes: dict[int, tuple[float, float]] = field(default_factory=dict)  # the cycles in which a tile's transfer begins and ends
    shown: int = 0  # tiles
    done: list[int] = field(default_factory=lambda: [0, 0, 0])  # finished tiles of the score group and of the value groups

    def ask(self, tile: int) -> None:
        begin = max(self.channel, self.now + self.latency)
        self.channel = begin + _COPIED / self.rate
        self.comes[tile] = begin, self.channel

    def give_back(self, group: int, tile: int) -> None:
        self.done[group] = tile + 1
        if min(self.done) > tile:
            del self.comes[tile]
            self.ask(tile + self.stages)

    def came(self, tile: int) -> bool:
        return tile in self.comes and self.now >= self.comes[tile][1]

    def after(self, cycles: int) -> Condition:
        end = self.now + cycles
        return lambda: self.now >= end

    def weigh(self, tile: int) -> Iterator[Condition]:
        yield lambda: self.came(tile)
        # Panels of queries in registers, whose products wait for one another, and the others alternate.
        scores = [Product(*(_OTHER if step // 4 % 2 else _KEPT)) for step in range(36)]
        room = sum(product.left for product in scores) - self.asking
        for asked, product in enumerate(scores, 1):
            self.queue.append(product)
            yield _no_more(room, scores[:asked])
        if self.show == "asked":
            self.shown = tile
        yield _no_more(0, scores)
        if self.show == "made":
            self.shown = tile
        self.give_back(0, tile)
        yield self.after(self.softmax)
        yield lambda: min(self.done[1:]) >= tile - 1  # two buffers for weights
        if self.show == "put":
            self.shown = tile + 1

    def add(self, group: int, tile: int) -> Iterator[Condition]:
        yield lambda: self.shown > tile
        yield self.after(self.signal)
        values = [Product(*_VALUES) for _ in range(4)]
        self.queue += values
        yield _no_more(0, values)
        self.give_back(group, tile)

    def multiply(self) -> None:
        """Advances the tensor cores by one step."""
        coming = any(begin <= self.now < end for begin, end in self.comes.values())
        width = max(0.0, _WIDTH - coming * self.rate * (_COPIED + _WEIGHTS) / _COPIED)
        time = float(STEP)
        while self.queue and time > 0:
            product = self.queue[0]
            speed = min(1.0, width / product.wants)
            cycles = min(product.left, time * speed)
            time = 0.0 if cycles < product.left else time - cycles / speed
            product.left -= cycles
            self.queue = self.queue[product.left == 0 :]

    def run(self) -> int:
        """Cycles until all tiles have been added."""
        for tile in range(self.stages):
            self.ask(tile)
        programs = [self.weigh, lambda tile: self.add(1, tile), lambda tile: self.add(2, tile)]
        work = [chain.from_iterable(map(program, range(self.tiles + 1))) for program in programs]  # + 1 publishes the last
        waits: list[Condition | None] = [next(program) for program in work]
        while min(self.done) < self.tiles:
            self.multiply()
            self.now += STEP
            for i, program in enumerate(work):
                while (wait := waits[i]) is not None and wait():
                    waits[i] = next(program, None)
        return self.now


def cycles(show: Show = "asked", **facts: float) -> float:
    """Cycles of a tile in the steady state."""
    few, many = (Sm(show, tiles=tiles, **facts).run() for tiles in (32, 96))  # type: ignore[arg-type]
    return (many - few) / 64


def main() -> None:
    print(f"Cycles, TFLOP/s, by when weights are shown. Products alone {PRODUCTS} cycles, shared memory {SHARED}.")
    print("stages latency rate softmax           put         asked          made")
    rows = [(5, latency, 48, 580) for latency in (700, 1000, 1600)] + [(5, 1000, 48, softmax) for softmax in (400, 800)]
    for stages, latency, rate, softmax in [*rows, (5, 1000, 24, 580), *((stages, 3000, 48, 580) for stages in (3, 4, 5, 6))]:
        tiles = [cycles(show, stages=stages, latency=latency, rate=rate, softmax=softmax) for show in get_args(Show)]
        times = "".join(f"{tile:8.0f} {PEAK * PRODUCTS / tile:5.0f}" for tile in tiles)
        print(f"{stages:6} {latency:7} {rate:4} {softmax:7}{times}")


if __name__ == "__main__":
    main()
