"""Explains with ncu's counters why a large program misses its goal, or why a peer is faster.

The goal is a time of at most 1.05 times the time model, and for programs that move so many bytes that start and end of a launch
do not matter, 0.95 of the speed of a copy. Counters are a row of program_bounds.json, which `bench.bounds` writes.
"""

from __future__ import annotations

from math import ceil

from bench.operators import Record

OVER_MODEL = 1.05
OF_COPYING = 0.95
LEAST_BYTES = 64e6  # bytes read and written; smaller problems have no goal
COPIES_BYTES = 2**28  # bytes from which a program must also reach the speed of a copy
MORE_BYTES = 1.05  # times the model's bytes: above it, DRAM moved some bytes twice
IDLE = 0.15  # fraction of the time that the GPU idles in the last wave of CTAs
FEW_WARPS = 60.0  # percent of the maximum warps of an SM
ROOM = 1.15  # if this factor more warps would fit than ran, capacity was free
STREAMS = 85.0  # percent of memory bandwidth: if both kernels reach it, other counters explain nothing
MORE, FEWER = "more instructions", "fewer warps"
MORE_INSTRUCTIONS = 1.2  # times those of a peer
FEWER_WARPS = 0.8  # times those of a peer

# A part counts as saturated from this percentage of its peak; for memory and L2, what the fastest copies reach.
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
    """Whether our row of rows.json or maps.json misses its goal."""
    if ours.get("bytes", 0) <= LEAST_BYTES or "over_model" not in ours:
        return False
    slow = ours["bytes"] >= COPIES_BYTES and ours.get("of_copying", 1.0) < OF_COPYING
    return slow or bool(ours["over_model"] > OVER_MODEL)


def reason(counters: Record, model_bytes: int) -> str:
    """Everything that limits a memory-bound kernel, with the counters that show it."""
    again = _times(counters, model_bytes)
    parts = [f"DRAM moves {again:.2f} x the bytes"] if again > MORE_BYTES else []
    return "; ".join([*parts, _limit(counters)]) + _figures(counters, again)


def compared(ours: Record, theirs: Record) -> list[str]:
    """The counters in which a faster peer's kernel is lower. If there are none, the events for which our warps wait more
    often."""
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
    """The kind of wait whose share of our warps' time exceeds the peer's share most. A record contains only the longest waits
    of each kernel."""
    most = max((name for name in ours if name != "selected"), key=lambda name: ours[name] - theirs.get(name, 0.0))
    return f"warps wait more often for {_named(most)}"


def _times(counters: Record, model_bytes: int) -> float:
    """The bytes that DRAM moved divided by the model's bytes; 0 if they were not counted."""
    return float(counters.get("dram_bytes", 0) / model_bytes)


def _limit(counters: Record) -> str:
    """The first limit that applies: a saturated part, an incomplete last wave, few warps, or what warps wait for."""
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
    """Whether few warps ran, and if it was counted, whether the SM had capacity for more."""
    warps, room = launch["warps_percent"], launch.get("room_percent")
    if warps >= FEW_WARPS:
        return "warps wait "
    if room is None:
        return "few warps, which wait "
    return f"few warps, {'though more have room' if room > ROOM * warps else 'since no more have room'}, which wait "


def _waits(waits: Record) -> str:
    """The two longest waits of warps, without `selected`, the cycle in which a warp issues."""
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
