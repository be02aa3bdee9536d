"""Entries of a cache are published and looked up without a compiler: the order of syncs, checks of an entry, hints, eviction
and staging."""

import fcntl
import hashlib
import json
import os
import stat
import threading
import time
from types import SimpleNamespace

import pytest

from opfacade.jit.cache import bundle, files, stale_entries, store, upkeep
from opfacade.jit.cache.store import Store, examine

KEYS = [c * 64 for c in "abcdef"]
PORTABLE = "9" * 64


@pytest.fixture
def place(tmp_path):
    tmp_path.chmod(0o700)
    return Store(tmp_path / "cache")


def published(place, key=KEYS[0], code=b"code", age=0.0, **facts):
    with place.staging() as built:
        (built / "kernel.so").write_bytes(code)
        found = place.publish(key, built, "kernel.so", {"portable": PORTABLE, "arch": "sm_90a", **facts})
    if age:
        os.utime(found.parent / "meta.json", (time.time() - age,) * 2)
    return found


def rewritten(library, **changes):
    meta = library.parent / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | changes))


def test_a_published_entry_is_synced_before_and_after_its_rename(place, monkeypatch):
    done, sync, rename = [], files.fsync, store._rename_or_yield
    monkeypatch.setattr(files, "fsync", lambda path: (done.append(("sync", path)), sync(path))[1])
    monkeypatch.setattr(store, "_rename_or_yield", lambda *paths: (done.append(("rename", *paths)), rename(*paths))[1])
    library = published(place)
    (_, built) = done[2]
    assert done == [
        ("sync", built / library.name),
        ("sync", built / "meta.json"),
        ("sync", built),
        ("rename", built, library.parent),
        ("sync", library.parent.parent),
    ]


def test_a_bundle_and_each_of_its_files_are_synced(place, tmp_path, monkeypatch):
    library = published(place)
    synced, sync = [], files.fsync
    monkeypatch.setattr(files, "fsync", lambda path: (synced.append(path.name), sync(path))[1])
    bundle.export(place, tmp_path / "b.tar")
    [aside] = synced
    assert aside.startswith(".b.tar.")
    synced.clear()
    bundle.import_(Store(tmp_path / "other"), tmp_path / "b.tar")
    assert sorted(synced[:2]) == sorted([library.name, "meta.json"])


def test_a_sound_entry_returns_its_library(place):
    library = published(place)
    found = examine(library.parent, KEYS[0])
    assert (found.library, found.why) == (library, "")
    assert library.name == f"kernel-{hashlib.sha256(b'code').hexdigest()[:16]}.so"
    assert place.valid(KEYS[0]) == library


@pytest.mark.parametrize(
    "changes",
    [{"key": KEYS[1]}, {"schema": 2}, {"sha256": "0" * 64}, {"so": "kernel.so"}, {"so": "../kernel-0000000000000000.so"}],
)
def test_a_record_that_disagrees_with_the_entry_invalidates_it(place, changes):
    library = published(place)
    (library.parent / "kernel.so").write_bytes(b"code")
    (library.parent.parent / "kernel-0000000000000000.so").write_bytes(b"code")
    rewritten(library, **changes)
    found = examine(library.parent, KEYS[0])
    assert found.library is None
    assert found.why == ("digests differ" if "sha256" in changes else "meta.json is that of another entry")


def test_a_library_stored_under_another_digest_is_refused(place):
    """A path that has been loaded once must never contain other code."""
    library = published(place)
    other = library.with_name(f"kernel-{'1' * 16}.so")
    library.rename(other)
    rewritten(library, so=other.name)
    assert examine(library.parent, KEYS[0]).library is None


def test_an_entry_with_changed_code_is_refused(place):
    library = published(place)
    library.write_bytes(b"c0de")
    assert examine(library.parent, KEYS[0]).library is None


def test_an_entry_that_is_a_symbolic_link_is_refused(place, tmp_path):
    library = published(place)
    library.parent.rename(tmp_path / "away")
    library.parent.symlink_to(tmp_path / "away")
    assert examine(library.parent, KEYS[0]).library is None


def test_compiler_output_is_made_inaccessible_to_other_users(place):
    before = os.umask(0)
    try:
        library = published(place)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in library.parent.iterdir()} == {0o600}


@pytest.mark.parametrize("hinted", [True, False])
def test_an_entry_is_found_by_its_sources_if_its_abi_fits(place, hinted):
    library = published(place, arch="sm_90a")
    assert (place.root / "by-source" / PORTABLE / KEYS[0]).exists()
    if not hinted:
        (place.root / "by-source" / PORTABLE / KEYS[0]).unlink()
    assert place.find(PORTABLE, lambda meta: meta["arch"] == "sm_90a") == library
    assert place.find(PORTABLE, lambda meta: meta["arch"] == "sm_80") is None


def test_a_hint_copied_to_other_sources_finds_no_entry(place):
    published(place)
    other = place.root / "by-source" / ("8" * 64)
    other.mkdir()
    (other / KEYS[0]).touch()
    assert place.find("8" * 64, lambda meta: True) is None


@pytest.mark.parametrize(("mode", "safe"), [(0o600, True), (0o644, True), (0o620, False), (0o602, False), (0o1602, False)])
def test_a_file_that_others_may_write_is_exposed(tmp_path, mode, safe):
    """A sticky bit protects the files in a directory, but it does not protect a file."""
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    assert (files.exposed(path.stat()) == "") is safe


@pytest.mark.parametrize(("mode", "safe"), [(0o755, True), (0o1777, True), (0o777, False), (0o770, False)])
def test_a_directory_that_others_may_write_is_exposed_unless_sticky(tmp_path, mode, safe):
    path = tmp_path / "directory"
    path.mkdir()
    path.chmod(mode)
    assert (files.exposed(path.stat()) == "") is safe
    path.chmod(0o700)


def test_a_file_of_another_user_is_exposed_unless_the_user_is_root():
    def info(uid):
        return SimpleNamespace(st_uid=uid, st_mode=stat.S_IFREG | 0o600)

    assert files.exposed(info(0)) == files.exposed(info(os.geteuid())) == ""
    assert "belongs to uid 4242" in files.exposed(info(4242))


# Eviction.


def sizes(place):
    return {entry.key: entry.size for entry in upkeep.entries(place)}


def test_the_size_limit_counts_all_files_of_the_remaining_entries(place):
    """The second entry is evicted because it is too large; the third, which is small, is kept."""
    for key, code, age in ((KEYS[0], 4000, 10), (KEYS[1], 9000, 20), (KEYS[2], 10, 30)):
        published(place, key, b"x" * code, age)
    found = sizes(place)
    library = next(place.entry(KEYS[0]).glob("*.so"))
    assert found[KEYS[0]] == library.stat().st_size + (library.parent / "meta.json").stat().st_size > 4000
    removed = upkeep.collect(place, max_bytes=found[KEYS[0]] + found[KEYS[2]])
    assert [entry.key for entry in removed] == [KEYS[1]]
    assert set(sizes(place)) == {KEYS[0], KEYS[2]}


def test_the_size_limit_includes_the_records(place):
    """The libraries alone would fit within the limit."""
    for key, age in ((KEYS[0], 10), (KEYS[1], 20)):
        published(place, key, b"x" * 50, age)
    upkeep.collect(place, max_bytes=100)
    assert sizes(place) == {}


def test_a_sufficient_size_limit_evicts_nothing(place):
    published(place)
    assert upkeep.collect(place, max_bytes=sum(sizes(place).values())) == []
    assert upkeep.collect(place) == []


def test_failed_builds_and_quarantined_entries_are_removed_by_age(place):
    for name in ("failed", "quarantine"):
        for key, age in ((KEYS[0], 100), (KEYS[1], 1)):
            directory = place.root / name / key
            directory.mkdir(parents=True)
            os.utime(directory, (time.time() - age,) * 2)
    upkeep.collect(place, max_age=50)
    assert {path.parent.name: path.name for path in place.root.glob("*/*")} == {"failed": KEYS[1], "quarantine": KEYS[1]}


def test_clear_leaves_no_entry_and_no_hint(place):
    published(place)
    (place.root / "failed" / KEYS[1]).mkdir(parents=True)
    assert upkeep.clear(place) == 1
    assert not any((place.root / name).exists() for name in ("by-source", "failed", "quarantine"))
    assert place.published() == []


# Staging.


def test_a_staging_directory_is_locked_during_use_and_removed_afterwards(place):
    with place.staging() as directory:
        (directory / "file").touch()
        handle = os.open(directory, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
    assert not directory.exists()


@pytest.mark.timeout(60)
def test_staging_is_locked_although_a_sweep_looks_at_it_first(place, monkeypatch):
    """The clean-up of another process holds the lock for a moment, and the builder waits for it."""
    looked, over, at = threading.Event(), threading.Event(), place.root / "tmp"

    def look(directory):
        handle = os.open(directory, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
        looked.set()
        time.sleep(0.2)
        os.close(handle)
        over.set()

    def made(directory):
        real(directory)
        if directory.parent == at:
            threading.Thread(target=look, args=(directory,)).start()
            looked.wait(30)

    real = files.make_private
    monkeypatch.setattr(files, "make_private", made)
    with place.staging() as directory:
        over.wait(30)
        handle = os.open(directory, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)


def test_only_old_staging_without_an_owner_is_swept(place, monkeypatch):
    abandoned = place.root / "tmp" / "abandoned"
    with place.staging() as directory:
        abandoned.mkdir()
        assert place.sweep() == 0  # just created, and not locked yet
        monkeypatch.setattr(stale_entries.time, "time", lambda now=time.time: now() + 61)
        assert place.sweep() == 1
        assert directory.exists()
        assert not abandoned.exists()
