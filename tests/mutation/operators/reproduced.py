"""`python -m tests.mutation.operators.reproduced`: names the listed faults that an operator also creates, by kind.

The same: an operator makes this very change. By kind: it makes a change of the same form (what goes, what comes in its place)
of the same tokens. The others are semantic: text is added or rewritten, as no operator does.
"""

from __future__ import annotations

import argparse
from collections import Counter
from functools import cache

from tests.mutation.mutant import Mutant
from tests.mutation.mutants import CPU, GPU, HOST
from tests.mutation.operators.fault import Fault
from tests.mutation.operators.form import Form, form
from tests.mutation.operators.population import ROOT, faults_of, files

FAR = 40  # maximum characters between the positions of two changes with the same differing tokens
SAME, BY_KIND, SEMANTIC, UNLIKE = "the same", "by kind", "semantic", "unlike any operator's"


def how(mutant: Mutant) -> str:
    """Whether an operator creates a fault of the lists."""
    if len(mutant.edits) != 1 or mutant.file not in _files():
        return SEMANTIC
    text = (ROOT / mutant.file).read_text()
    old, new = mutant.edits[0]
    start = text.index(old)
    own = form(text, start, start + len(old), new)
    near = [
        _form(text, one)
        for one in _faults(mutant.file)
        if one.change.start <= own.end + FAR and own.start <= one.change.end + FAR
    ]
    if any(own.is_one_with(one) for one in near):
        return SAME
    if any(own.is_like(one) for one in near):
        return BY_KIND
    return SEMANTIC if own.kind in ("rewritten", "added") else UNLIKE


@cache
def _files() -> frozenset[str]:
    return frozenset(files())


@cache
def _faults(file: str) -> list[Fault]:
    return faults_of(file)


@cache
def _form(text: str, fault: Fault) -> Form:
    return form(text, fault.change.start, fault.change.end, fault.change.new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--show", default="", help="print the faults of one answer: " + ", ".join((SAME, BY_KIND, SEMANTIC, UNLIKE))
    )
    words = parser.parse_args()
    found = {mutant: how(mutant) for mutant in (*HOST, *CPU, *GPU)}
    counts = Counter(found.values())
    for mutant, answer in found.items():
        if answer == words.show:
            print(f"{mutant.name} ({mutant.file}): {mutant.edits}")
    made, able = counts[SAME] + counts[BY_KIND], len(found) - counts[SEMANTIC]
    print(f"{len(found)} listed: {dict(counts)}")
    print(f"{made} of the {able} that are not semantic are made by an operator: {made / max(able, 1):.1%}")


if __name__ == "__main__":
    main()
