"""Functions of f64 on random arguments: `python -m bench.functions --f64 [--count N] [--seconds S]`, on a GPU.

Arguments are dense near zeros, poles and the ends of ranges. A screen in long double (`bench/f64_screen.cc`) computes the error
of each result. mpmath then checks the worst results and as many random ones; if the two disagree, the run fails, because the
screen is not reliable.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import f64_oracle
from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs.expression import Node, apply, value
from opfacade.programs.fields import Input, Output
from opfacade.programs.operations import BINARY_FUNCTIONS, FUNCTIONS
from opfacade.programs.ulps import ABSOLUTE, LGAMMA_OUTSIDE, documented

if TYPE_CHECKING:
    from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
CHUNK = 2_500_000  # arguments of one launch
WORST, SPOTS = 24, 40  # results per chunk that mpmath checks
AGREED = 0.02  # units of 2^-52: allowed difference between screen and mpmath for errors below 64


@dataclass
class Found:
    """The result for one function. inputs: the number of screened arguments. judged: the number that mpmath checked. apart: the
    largest difference between screen and mpmath. at: the arguments of the worst result."""

    function: str
    inputs: int = 0
    judged: int = 0
    ulps: float = 0.0
    apart: float = 0.0
    at: tuple[float, ...] = ()
    wrong: str = ""

    def row(self) -> dict[str, Any]:
        return asdict(self) | {"dtype": "f64"}


def problem(name: str, count: int, root: Callable[[Node], Node] | None = None) -> MapDescriptor:
    """root: an expression that is measured instead of the function."""
    names = ("x", "y")[: 1 + (name in BINARY_FUNCTIONS)]
    nodes = [value(one, "f64") for one in names]
    output = Output(name="z", dtype="f64", value=root(*nodes) if root else apply(name, *nodes))
    return MapDescriptor(shape=(count,), inputs=tuple(Input(name=one, dtype="f64") for one in names), outputs=(output,))


def arguments(name: str, count: int, seed: int) -> list[Tensor]:
    """A quarter each: all exponents; uniform over the range; all magnitudes in the range; near the special points. The second
    argument of pow and similar functions has other ranges."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    known = f64_oracle.RANGES[name]
    if name not in BINARY_FUNCTIONS:
        return [_column(known, count, draw)]
    x = _column(known, count, draw)
    y = _column(f64_oracle.Range(-400, 400, (0.0, 1.0, 0.5, 2.0)) if name == "pow" else known, count, draw)
    if name == "pow":  # half of the powers are within the range of f64
        y[::2] = (torch.rand(y[::2].shape, generator=draw, dtype=torch.float64) * 1500 - 750) / x[::2].log()
    else:
        y[::2] = x[::2] * (torch.rand(x[::2].shape, generator=draw, dtype=torch.float64) * 4 - 2)
    return [x, y[torch.arange(count)].nan_to_num(1.0)]


def _column(known: f64_oracle.Range, count: int, draw: Any) -> Tensor:
    import torch

    part = count // 4
    random = lambda n: torch.rand(n, generator=draw, dtype=torch.float64)  # noqa: E731
    signs = lambda n: torch.randint(0, 2, (n,), generator=draw) * 2.0 - 1  # noqa: E731
    every = torch.randint(-(2**63), 2**63 - 1, (part,), generator=draw).view(torch.float64)
    over = known.low + (known.high - known.low) * random(part)
    size = max(abs(known.low), abs(known.high))
    sized = signs(part) * size * torch.exp2(-80 * random(part))
    rest = count - 3 * part
    points = torch.tensor(known.points, dtype=torch.float64)[torch.randint(0, len(known.points), (rest,), generator=draw)]
    beside = points + signs(rest) * points.abs().clamp(min=2.0**-20) * torch.exp2(-60 * random(rest))
    found = torch.cat([every.nan_to_num(1.0), over, sized, beside])
    outside = (found < known.least) | (found > known.most)
    found[outside] = known.low + (known.high - known.low) * random(int(outside.sum()))
    return found


def built(folder: Path) -> Any:
    """The compiled screen as a library. Raises if there is no C++ compiler."""
    place = folder / "screen.so"
    words = ["g++", "-O2", "-shared", "-fPIC", f"-I{ROOT}", "-o", str(place), str(ROOT / "bench/f64_screen.cc")]
    subprocess.run(words, check=True)
    return ctypes.CDLL(str(place))


def screened(library: Any, name: str, columns: Sequence[Tensor], got: Tensor, threads: ThreadPoolExecutor) -> Tensor:
    """The error of each result, computed in long double. Uses threads, because a call of the library releases the GIL."""
    import torch

    found, size = torch.empty_like(got), -(-len(got) // 64)
    absolute = ctypes.c_double(ABSOLUTE.get(name, (0.0, 0.0))[1])
    places = [ctypes.c_void_p(one.data_ptr()) for one in (*columns, got, found)]

    def part(first: int) -> None:
        here = [ctypes.c_void_p((place.value or 0) + 8 * first) for place in places]
        second = here[1] if len(columns) == 2 else None
        count = ctypes.c_long(min(size, len(got) - first))
        if library.screen(name.encode(), here[0], second, here[-2], absolute, here[-1], count):
            raise KeyError(name)

    list(threads.map(part, range(0, len(got), size)))
    if name == "lgamma":
        least, most = LGAMMA_OUTSIDE["f64"]
        found[(columns[0] > least) & (columns[0] < most)] = 0
    return found


class Judge:
    """Measures one function after another: first the screen, then mpmath."""

    def __init__(self, library: Any, threads: ThreadPoolExecutor, processes: ProcessPoolExecutor) -> None:
        self.library, self.threads, self.processes = library, threads, processes

    def add(self, found: Found, columns: Sequence[Tensor], got: Tensor) -> None:
        """Checks the results of one chunk."""
        import torch

        name = found.function
        errors = screened(self.library, name, columns, got, self.threads)
        spots = torch.linspace(0, len(got) - 1, min(SPOTS, len(got))).long()
        places = torch.cat([errors.topk(min(WORST, len(got))).indices, spots]).unique()
        given = list(zip(*(column[places].tolist() for column in columns), strict=True))
        absolute = ABSOLUTE.get(name, (0.0, 0.0))[1]
        jobs = [(name, one, result, absolute) for one, result in zip(given, got[places].tolist(), strict=True)]
        for one, screen, real in zip(
            given, errors[places].tolist(), self.processes.map(_units, jobs, chunksize=8), strict=True
        ):
            skipped = name == "lgamma" and LGAMMA_OUTSIDE["f64"][0] < one[0] < LGAMMA_OUTSIDE["f64"][1]
            if skipped:
                continue
            if real > found.ulps:
                found.ulps, found.at = real, one
            found.apart = max(found.apart, abs(screen - real) if min(screen, real) < 64 else 0.0)
        found.inputs, found.judged = found.inputs + len(got), found.judged + len(places)

    def close(self, found: Found) -> Found:
        most = documented(found.function, "f64")
        if found.ulps > most:
            found.wrong = f"{found.ulps:.4g} ulps at {found.at}, documented are {most}"
        elif found.apart > AGREED:
            found.wrong = f"the screen is {found.apart:.3g} beside mpmath"
        return found


def _units(job: tuple[str, tuple[float, ...], float, float]) -> float:
    return f64_oracle.units(*job)


def measured(
    make: Callable[[Any], Any], judge: Judge, count: int, seconds: float, names: Sequence[str] = FUNCTIONS
) -> Iterator[Found]:
    """Measures each function on `count` arguments. After `seconds`, the remaining functions get fewer; `inputs` shows the
    number."""
    import torch

    begin, left = time.monotonic(), len(names)
    for name in names:
        until = time.monotonic() + max(begin + seconds - time.monotonic(), 0.0) / left
        found, left = Found(name), left - 1
        while found.inputs < count and (not found.inputs or time.monotonic() < until):
            size = min(CHUNK, count - found.inputs)
            columns = arguments(name, size, FUNCTIONS.index(name) * 1009 + found.inputs // CHUNK)
            subject = make(problem(name, size))
            there = [column.to(subject.device) for column in columns]
            z = torch.empty(size, dtype=torch.float64, device=subject.device)
            subject.run(subject.descriptor.args(**dict(zip("xy", there, strict=False)), z=z))
            judge.add(found, columns, z.cpu())
        yield judge.close(found)


def pools() -> tuple[ThreadPoolExecutor, ProcessPoolExecutor]:
    import multiprocessing

    cores = os.cpu_count() or 1
    return ThreadPoolExecutor(cores), ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn"))
