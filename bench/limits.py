"""Why a large program is short of its goal, or a peer is faster: ncu's counters of their kernels in words.

The goal is a time of at most 1.05 of the time model, and 0.95 of the speed of a copy where as much is moved as makes a launch's
start and end small. Counters are a row of program_bounds.json, as `bench.bounds` makes it.
"""

from __future__ import annotations

from math import ceil

from bench.operators import Record

OVER_MODEL = 1.05
OF_COPYING = 0.95
LEAST_BYTES = 64e6  # read and written: what moves less is held to no goal
COPIES_BYTES = 2**28  # from here on a program is held to the speed of a copy as well
MORE_BYTES = 1.05  # of the model's bytes: DRAM moved some of them twice
IDLE = 0.15  # of the time: a last wave of CTAs that leaves as much of the GPU without work
FEW_WARPS = 60.0  # percent of the warps that an SM holds
ROOM = 1.15  # times the warps that ran: so many more had room
STREAMS = 85.0  # percent of memory: so much in both kernels, and a difference of instructions or warps says nothing
MORE, FEWER = "more instructions", "fewer warps"
MORE_INSTRUCTIONS = 1.2  # times those of a peer
FEWER_WARPS = 0.8  # times those of a peer

# A part is full at a percentage of what it could do: for memory and L2 at what the fastest streams of these records reach.
FULL = {"instructions": 80.0, "memory": 90.0, "L2": 90.0, "shared memory and L1": 80.0}
FULL |= {"exponentials": 80.0, "f32": 80.0, "tensor cores": 80.0}
NAMES = {"instructions": "issue slots", "f32": "units of f32", "exponentials": "units of exponentials"}
WAITS = {
    "barrier": "other warps at a barrier",
    "branch_resolving": "a branch",
    "dispatch_stall": "dispatch",
    "drain": "their last stores",
    "gmma": "tensor cores",
    "imc_miss": "constants",
    "lg_throttle": "the queue of loads",
    "long_scoreboard": "memory",
    "math_pipe_throttle": "a busy unit of arithmetic",
    "membar": "a fence",
    "mio_throttle": "the queue of shared memory",
    "no_instruction": "instructions to be fetched",
    "not_selected": "an issue slot",
    "short_scoreboard": "shared memory or exponentials",
    "sleeping": "a sleep",
    "tex_throttle": "the queue of textures",
    "wait": "the fixed latency of instructions",
}


def short(ours: Record) -> bool:
    """Whether our row of rows.json or maps.json is short of its goal."""
    if ours.get("bytes", 0) <= LEAST_BYTES or "over_model" not in ours:
        return False
    slow = ours["bytes"] >= COPIES_BYTES and ours.get("of_copying", 1.0) < OF_COPYING
    return slow or bool(ours["over_model"] > OVER_MODEL)


def reason(counters: Record, model_bytes: int) -> str:
    """All that limits a kernel which moves bytes by its model, and the counters that say so."""
    again = _times(counters, model_bytes)
    parts = [f"DRAM moves {again:.2f} x the bytes"] if again > MORE_BYTES else []
    return "; ".join([*parts, _limit(counters)]) + _figures(counters, again)


def compared(ours: Record, theirs: Record) -> list[str]:
    """All that a faster peer's kernel does with less; where that is nothing, what our warps wait for more often."""
    if min(row["busy_percent"]["memory"] for row in (ours, theirs)) >= STREAMS:
        return ["memory limits both"]
    most = MORE_INSTRUCTIONS * theirs["launch"]["instructions"]
    found = [MORE] if ours["launch"]["instructions"] >= most else []
    if ours["launch"]["warps_percent"] <= FEWER_WARPS * theirs["launch"]["warps_percent"]:
        found.append(FEWER)
    if ours.get("dram_bytes", 0) > MORE_BYTES * theirs.get("dram_bytes", float("inf")):
        found.append("more bytes of DRAM")
    return found or [_longer(ours["waits_percent"], theirs["waits_percent"])]


def _longer(ours: Record, theirs: Record) -> str:
    """The wait whose share of our warps' time is most above a peer's; a record has the longest waits of each alone."""
    most = max((name for name in ours if name != "selected"), key=lambda name: ours[name] - theirs.get(name, 0.0))
    return f"warps wait more often for {_named(most)}"


def _times(counters: Record, model_bytes: int) -> float:
    """Bytes that DRAM moved over those of the model; 0 where they were not counted."""
    return float(counters.get("dram_bytes", 0) / model_bytes)


def _limit(counters: Record) -> str:
    """The first of: a part that is full, a last wave that is not, few warps, and what warps wait for."""
    busy, launch = counters["busy_percent"], counters["launch"]
    full = [part for part in FULL if busy.get(part, 0.0) >= FULL[part]]
    if full:
        most = max(full, key=lambda part: busy[part] - FULL[part])
        name = NAMES.get(most, most)
        return f"{name} limit{'' if name.endswith('s') else 's'} it"
    waves = launch["waves"]
    if waves and 1 - waves / ceil(waves) >= IDLE:
        whole = int(waves)
        rest = f"{100 * (waves - whole):.0f} % of the GPU"
        return f"CTAs fill {rest}" if not whole else f"after {whole} full wave{'s' * (whole > 1)} of CTAs the last fills {rest}"
    return f"{_few(launch)}{_waits(counters['waits_percent'])}"


def _few(launch: Record) -> str:
    """Whether few warps wait, and whether an SM had capacity for more, where that was counted."""
    warps, room = launch["warps_percent"], launch.get("room_percent")
    if warps >= FEW_WARPS:
        return "warps wait "
    if room is None:
        return "few warps, which wait "
    return f"few warps, {'though more have room' if room > ROOM * warps else 'since no more have room'}, which wait "


def _waits(waits: Record) -> str:
    """The two longest waits of warps; `selected` is the cycle in which one issues."""
    longest, *rest = sorted((name for name in waits if name != "selected"), key=lambda name: -waits[name])[:2]
    told = [f"{waits[longest]:.0f} % of their time for {_named(longest)}"]
    return ", ".join([*told, *(f"{waits[name]:.0f} % for {_named(name)}" for name in rest)])


def _named(wait: str) -> str:
    return WAITS.get(wait, wait.replace("_", " "))


def _figures(counters: Record, again: float) -> str:
    busy, launch = counters["busy_percent"], counters["launch"]
    moved = f", DRAM {again:.2f} x" if again else ""
    percent = {"issued": busy["instructions"], "warps": launch["warps_percent"], "memory": busy["memory"]}
    return f" ({', '.join(f'{name} {value:.0f} %' for name, value in percent.items())}, waves {launch['waves']:.1f}{moved})"
