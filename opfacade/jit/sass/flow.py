"""The control flow of a SASS function: the possible successors of each instruction."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_GUARD = re.compile(r"^@(!?U?P\w+)\s+")
_TARGET = re.compile(r"`\((\.L\w+)\)|(?<!\[)\b0x([0-9a-f]+)\s*$")
_LISTED = re.compile(r"BRANCH_TARGETS ([^*\"]+)")
_BARRIER = re.compile(r"\b(B\d+)\b")
# A branch with an operand before its target may be taken by only some threads.
_CONDITION = re.compile(r"^BRA\S*\s+!?[~UP]")
_ENDS = ("EXIT", "RET", "KILL", "BPT.TRAP")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its address, its text, and the text without the predicate that guards it."""

    address: int
    text: str
    body: str
    guarded: bool

    @classmethod
    def parse(cls, address: int, text: str) -> Instruction:
        text = " ".join(text.split())
        guard = _GUARD.match(text)
        body = text[guard.end() :] if guard else text
        return cls(address, text, body, guard is not None and guard[1] not in ("PT", "UPT"))


@dataclass(slots=True)
class Flow:
    """A function: its instructions in order, and the positions of its labels."""

    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def successors(flow: Flow) -> list[tuple[int, ...]]:
    """The possible successors of each instruction. An unknown target may be any instruction that could be a target."""
    places = {instruction.address: at for at, instruction in enumerate(flow.instructions)}
    targets = [_targets(instruction, flow, places) for instruction in flow.instructions]
    anywhere = tuple(sorted({place for found in targets for place in found}))
    last = len(flow.instructions) - 1
    meetings: dict[int, set[int]] = {}
    while True:  # the target of a BSYNC may lead to another BSYNC
        after = [
            tuple(sorted({place for place in _next(at, flow, targets[at], meetings, anywhere) if place <= last}))
            for at in range(len(flow.instructions))
        ]
        found = _meetings(flow, targets, after)
        if found == meetings:
            return after
        meetings = found


def _targets(instruction: Instruction, flow: Flow, places: dict[int, int]) -> tuple[int, ...]:
    if not instruction.body.startswith(("BRA", "BRX", "JMP", "JMX", "BSSY", "CALL", "WARPSYNC")):
        return ()
    if listed := _LISTED.search(instruction.text):
        return tuple(flow.labels[name.strip()] for name in listed[1].split(",") if name.strip() in flow.labels)
    found = _TARGET.search(instruction.body)
    if found is None or instruction.body.startswith(("BRX", "JMX")):
        return ()
    place = flow.labels.get(found[1]) if found[1] else places.get(int(found[2], 16))
    return () if place is None else (place,)


def _meetings(flow: Flow, targets: list[tuple[int, ...]], after: list[tuple[int, ...]]) -> dict[int, set[int]]:
    """The targets of each BSYNC: those of the BSSY that reach it, because barrier names are reused."""
    named = _by_barrier(flow, "BSSY")
    found: dict[int, set[int]] = {}
    for barrier, starts in named.items():
        waits = _by_barrier(flow, "BSYNC").get(barrier, [])
        ends = {*starts, *waits}
        told = barrier in _by_barrier(flow, "BMOV")  # the barrier may come from a register, so any target is possible
        for start in starts:
            for wait in waits if told else _reached(start, ends, after) & set(waits):
                found.setdefault(wait, set()).update(targets[start])
    return found


def _by_barrier(flow: Flow, opcode: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for at, instruction in enumerate(flow.instructions):
        if instruction.body.startswith(opcode) and (barrier := _BARRIER.search(instruction.body)):
            found.setdefault(barrier[1], []).append(at)
    return found


def _reached(start: int, ends: set[int], after: list[tuple[int, ...]]) -> set[int]:
    """Instructions reachable from `start`, up to the next of `ends` on each path."""
    seen: set[int] = set()
    ahead = list(after[start])
    while ahead:
        at = ahead.pop()
        if at not in seen:
            seen.add(at)
            ahead.extend(() if at in ends else after[at])
    return seen


def _next(
    at: int, flow: Flow, targets: tuple[int, ...], meetings: dict[int, set[int]], anywhere: tuple[int, ...]
) -> tuple[int, ...]:
    instruction = flow.instructions[at]
    body, falls = instruction.body, (at + 1,)
    if body.startswith(_ENDS):
        return falls if instruction.guarded else ()
    if body.startswith(("BRX", "JMX")):
        return (targets or anywhere) + (falls if instruction.guarded else ())
    if body.startswith(("BRA", "JMP")):
        maybe = instruction.guarded or _CONDITION.match(body) is not None or not targets
        return targets + (falls if maybe else ())
    if body.startswith("BSYNC"):
        return tuple(meetings.get(at, ())) + falls
    return falls + (targets if body.startswith(("CALL", "WARPSYNC")) else ())
