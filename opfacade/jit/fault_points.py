"""Hooks for tests: `at(step)` does nothing unless a test sets `hook`.

Lists the steps of a cold build in order; if a process is killed at any of them, the cache must stay valid.
"""

from __future__ import annotations

from collections.abc import Callable

STEPS = (
    "lock.open",
    "lock.take",
    "lock.held",
    "staging.made",
    "sources.written",
    "compiler.started",
    "compiled",
    "library.named",
    "library.synced",
    "meta.written",
    "meta.synced",
    "staging.synced",
    "shard.made",
    "renamed",
    "shard.synced",
    "indexed",
    "verified",
)

hook: Callable[[str], None] | None = None


def at(step: str) -> None:
    if hook is not None:
        hook(step)
