"""The lengths of requests: from a trace of a real service, or random with a similar distribution."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

# Median and spread of the logarithm, and the largest value, of a conversation service's requests.
_CONTEXT = (1020, 0.98, 4096)
_GENERATED = (129, 0.86, 1000)


@dataclass(frozen=True, slots=True)
class Length:
    """One request: the number of tokens in its prompt, and of generated tokens."""

    context: int
    generated: int

    @property
    def cached(self) -> int:
        """The number of tokens in the cache at the end; the last generated token is not fed back."""
        return self.context + self.generated - 1

    def capped(self, most: int | None) -> Length:
        return self if most is None else Length(self.context, min(self.generated, most))


def from_trace(path: Path, count: int) -> list[Length]:
    """The first requests of a CSV file with the columns ContextTokens and GeneratedTokens."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        lengths = [_parsed(path, line, row) for line, row in islice(enumerate(csv.DictReader(file), 2), count)]
    if not lengths:
        raise _bad(path, 1, "at least one request", "none")
    return lengths


def _parsed(path: Path, line: int, row: dict[str, str]) -> Length:
    try:
        length = Length(int(row["ContextTokens"]), int(row["GeneratedTokens"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _bad(path, line, "integers in columns ContextTokens and GeneratedTokens", repr(row)[:80]) from error
    if length.context < 1 or length.generated < 1:
        raise _bad(path, line, "at least 1 token", f"{length.context},{length.generated}")
    return length


def _bad(path: Path, line: int, expected: str, got: str) -> ValueError:
    return ValueError(f"demo.trace: {path}:{line} expected {expected}, got {got}.")


def drawn(count: int, seed: int) -> list[Length]:
    """Log-normal lengths, distributed as in a conversation service."""
    rng = random.Random(seed)
    return [Length(_draw(rng, *_CONTEXT), _draw(rng, *_GENERATED)) for _ in range(count)]


def _draw(rng: random.Random, median: int, sigma: float, most: int) -> int:
    return min(most, max(1, round(rng.lognormvariate(math.log(median), sigma))))


def page_counts(lengths: Iterable[Length], page_size: int) -> list[int]:
    """The number of pages that each request needs at its end."""
    return [-(-length.cached // page_size) for length in lengths]
