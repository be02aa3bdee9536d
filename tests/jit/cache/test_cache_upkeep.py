"""Entries are evicted by the time of their last use, under the lock of each entry, and never during a build."""

import os
import time

import pytest

from opfacade import jit
from opfacade.jit import JitSpec, cache
from opfacade.jit.cache import upkeep


def tiny(value):
    return JitSpec.of("tiny", "testing/tiny", "sm_80", value=value)


@pytest.fixture
def three(toolkit):
    """The keys of three entries that were last used three, two and one days ago."""
    for value in (1, 2, 3):
        meta = jit.build(tiny(value)).parent / "meta.json"
        os.utime(meta, (time.time() - (4 - value) * 86400,) * 2)
    return [jit.key(tiny(value)) for value in (1, 2, 3)]


def left():
    return {entry.key for entry in upkeep.entries(cache.shared())}


def test_an_entry_reports_its_key_name_architecture_size_and_age(three):
    newest = upkeep.entries(cache.shared())[0]
    assert (newest.key, newest.name, newest.arch) == (three[2], "tiny", "sm_80")
    assert newest.size == sum(path.stat().st_size for path in cache.entry(three[2]).iterdir())
    assert newest.age == pytest.approx(86400, abs=60)
    assert newest.seconds > 0


def test_the_least_recently_used_entry_is_evicted_first(three):
    sizes = {entry.key: entry.size for entry in upkeep.entries(cache.shared())}
    removed = upkeep.collect(cache.shared(), max_bytes=sizes[three[2]] + sizes[three[1]])
    assert [entry.key for entry in removed] == [three[0]]
    assert left() == set(three[1:])
    assert len(list((cache.root() / "by-source").iterdir())) == 2


def test_a_use_protects_an_entry_from_eviction(three):
    jit.build(tiny(1))
    upkeep.collect(cache.shared(), max_bytes=upkeep.entries(cache.shared())[0].size)
    assert left() == {three[0]}


def test_entries_unused_for_longer_than_max_age_are_evicted(three):
    upkeep.collect(cache.shared(), max_age=1.5 * 86400)
    assert left() == {three[2]}


def test_a_locked_entry_is_not_evicted(three):
    with cache.lock(three[0], 1):
        upkeep.collect(cache.shared(), max_bytes=0)
    assert left() == {three[0]}


def test_clear_keeps_locks_and_compiler_digests(three):
    jit.build(tiny(1)).write_bytes(b"")
    jit.build(tiny(1))
    assert upkeep.clear(cache.shared()) == 3
    assert {path.name for path in cache.root().iterdir()} == {"obj", "locks", "tmp", "toolchain.json"}
    assert not list((cache.root() / "tmp").iterdir())
    assert jit.build(tiny(1)).is_file()


def test_verify_names_broken_entries(three):
    jit.build(tiny(2)).write_bytes(b"x")
    (cache.entry(three[2]) / "meta.json").unlink()
    broken = upkeep.verify(cache.shared())
    assert set(broken) == {three[1], three[2]}
    assert broken[three[1]] == "digests differ"


def test_a_library_removed_while_in_use_still_works(toolkit):
    module = jit.load(tiny(1))
    upkeep.clear(cache.shared())
    assert jit.load(tiny(1)) is module


def test_the_quarantine_has_a_maximum_size(toolkit, monkeypatch):
    monkeypatch.setattr("opfacade.jit.cache.stale_entries._MAX_QUARANTINED", 3)
    for _ in range(5):
        jit.build(tiny(1)).write_bytes(b"")
    jit.build(tiny(1))
    assert len(list((cache.root() / "quarantine").iterdir())) == 3
