"""Scheduler: each step admits requests while pages allow, decodes all it can, and fills the budget with prompts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from examples.demo.lengths import Length
from examples.demo.pages import PageAllocator


@dataclass(slots=True)
class Request:
    """A request, the pages it owns, and how many of its tokens are in the cache."""

    number: int
    length: Length
    pages: list[int] = field(default_factory=list)
    cached: int = 0

    @property
    def decodes(self) -> bool:
        return self.cached >= self.length.context

    @property
    def done(self) -> bool:
        return self.cached >= self.length.cached


@dataclass(frozen=True, slots=True)
class Part:
    """The newest rows of one request, at its cached length after this step."""

    request: Request
    rows: int


@dataclass(frozen=True, slots=True)
class ServingStep:
    number: int
    prefill: tuple[Part, ...]
    decode: tuple[Part, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.prefill + self.decode

    @property
    def drawing(self) -> tuple[Part, ...]:
        """The last row of each request that draws a token; a prompt draws one after its last chunk."""
        return tuple(Part(part.request, 1) for part in self.parts if part.request.decodes)


class Scheduler:
    """Continuous batching with chunked prefill. Requests are admitted in order; a step processes about `chunk` rows at most."""

    def __init__(self, lengths: Sequence[Length], pool: PageAllocator, page_size: int, chunk: int) -> None:
        self._waiting = deque(Request(number, length) for number, length in enumerate(lengths))
        self._pool, self._page_size, self._chunk = pool, page_size, chunk
        self.running: list[Request] = []
        self.completed = 0
        self._steps = 0

    def next_step(self) -> ServingStep | None:
        """The next step. Takes its pages and counts its tokens as cached. None if every request is done."""
        self._admit()
        if not self.running:
            return None
        decode = [Part(request, 1) for request in self.running if request.decodes]
        prefill = self._prompts(self._chunk - len(decode))
        for part in (*prefill, *decode):
            self._grow(part)
        self._steps += 1
        return ServingStep(self._steps, tuple(prefill), tuple(decode))

    def retire(self) -> None:
        """Return the pages of the requests that are done."""
        for request in self.running:
            if request.done:
                self._pool.give_back(request.number, request.pages)
                self.completed += 1
        self.running = [request for request in self.running if not request.done]

    def _admit(self) -> None:
        while self._waiting and self._pool.reserve(self._waiting[0].number, self._pages_for(self._waiting[0].length.cached)):
            self.running.append(self._waiting.popleft())

    def _prompts(self, budget: int) -> list[Part]:
        parts = []
        for request in self.running:
            rows = min(budget, request.length.context - request.cached)
            if rows > 0:
                parts.append(Part(request, rows))
                budget -= rows
        return parts

    def _grow(self, part: Part) -> None:
        request = part.request
        request.cached += part.rows
        while len(request.pages) < self._pages_for(request.cached):
            request.pages.append(self._pool.take(request.number))

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self._page_size)
