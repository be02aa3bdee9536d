"""The cache store, tested without a compiler: locks, file permissions, building once and reusing, eviction and quarantine,
bundles."""

import errno
import fcntl
import os
import stat
import time
from pathlib import Path

import pytest

from opfacade import errors
from opfacade.jit import cache
from opfacade.jit.cache import bundle, files, locks, upkeep
from opfacade.jit.cache.store import Store
from tests.jit.cache.test_store import KEYS, published

KEY = KEYS[0]


@pytest.fixture
def place(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / "cache"))
    return Store(tmp_path / "cache")


# Locks.


def test_a_second_lock_raises_after_its_timeout(place):
    with place.lock(KEY, 1):
        started = time.monotonic()
        with pytest.raises(errors.CacheLockTimeout, match=f"pid {os.getpid()}"), place.lock(KEY, 0.1):
            pass
        assert time.monotonic() - started < 10
        with place.lock(KEYS[1], 0.1):
            pass
    with place.lock(KEY, 0.1):
        pass


def test_a_replaced_lock_file_is_locked_again(place, monkeypatch):
    path, taken = place.root / "locks" / f"{KEY}.lock", []

    def flock(fd, how, take=fcntl.flock):
        take(fd, how)
        if how != fcntl.LOCK_UN and not taken:
            path.rename(path.with_suffix(".old"))
            path.touch()
        taken.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    with place.lock(KEY, 1):
        assert taken[-1] == path.stat().st_ino


def test_a_lock_file_that_is_a_symbolic_link_is_refused(place, tmp_path):
    (place.root / "locks").mkdir(parents=True, mode=0o700)
    (tmp_path / "other").write_text("content")
    (place.root / "locks" / f"{KEY}.lock").symlink_to(tmp_path / "other")
    with pytest.raises(errors.CacheError), place.lock(KEY, 0.1):
        pass
    assert (tmp_path / "other").read_text() == "content"


# File modes.


@pytest.mark.parametrize("umask", [0, 0o777])
def test_file_modes_do_not_depend_on_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        files.make_private(tmp_path / "a" / "b")
        files.write_private(tmp_path / "a" / "b" / "file", b"x")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("a", "a/b", "a/b/file")]
    assert modes == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("part", ["", "cache", "cache/v1", "cache/v1/obj"])
def test_every_directory_down_to_the_entries_must_be_private(place, tmp_path, part):
    published(place)
    place.require_private(KEY)
    (tmp_path / part).chmod(0o770)
    with pytest.raises(errors.CacheSecurityError, match="OPF-J023"):
        place.require_private(KEY)
    with pytest.raises(errors.CacheSecurityError, match="OPF-J023"):
        place.valid(KEY)


def test_a_cache_directory_that_is_a_symbolic_link_is_refused(place, tmp_path):
    published(place)
    (place.root / "obj").rename(tmp_path / "away")
    (place.root / "obj").symlink_to(tmp_path / "away")
    with pytest.raises(errors.CacheSecurityError, match="symbolic link"):
        place.valid(KEY)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_is_not_read(tmp_path, mode):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    path.chmod(mode)
    with pytest.raises(OSError, match="writable for others"):
        files.read_private(path)
    path.chmod(0o600)
    assert files.read_private(path) == b"x"


# Builds.


def make_of(code=b"code", made=None):
    made = [] if made is None else made

    def make(staging):
        made.append(staging)
        (staging / "kernel.so").write_bytes(code)
        return {"portable": "9" * 64}

    return make, made


def test_a_kernel_is_built_once_and_then_found(place):
    make, made = make_of()
    first = cache.obtain(KEY, "kernel.so", make)
    assert cache.obtain(KEY, "kernel.so", make) == first
    assert len(made) == 1


def test_a_broken_entry_is_quarantined_and_rebuilt(place):
    make, made = make_of()
    first = cache.obtain(KEY, "kernel.so", make)
    first.write_bytes(b"c0de")
    assert cache.obtain(KEY, "kernel.so", make).read_bytes() == b"code"
    assert len(made) == 2
    assert [path.name.partition(".")[0] for path in (place.root / "quarantine").iterdir()] == [KEY]


def test_a_disk_that_repeatedly_stores_other_bytes_raises_an_error(place, monkeypatch):
    make, made = make_of()
    sync = files.fsync

    def lies(path):
        sync(path)
        if path.name.startswith("kernel-"):
            path.write_bytes(b"c0de")

    monkeypatch.setattr(files, "fsync", lies)
    with pytest.raises(errors.CacheIntegrityError, match="does not contain what was just written"):
        cache.obtain(KEY, "kernel.so", make)
    assert len(made) == 2


def test_a_full_disk_during_compilation_is_not_reported_as_a_source_error(place):
    error = errors.CompileError("failed")
    error.log_tail = "fatal error: No space left on device"

    def fail(staging):
        raise error

    with pytest.raises(errors.CacheError) as caught, place.staging() as directory:
        cache._make_in(place, KEY, directory, fail)
    assert caught.value.errno == errno.ENOSPC


# Upkeep.


def test_the_time_of_use_is_written_at_most_once_per_day(place):
    for key, age in ((KEY, 2 * 86400), (KEYS[1], 3600)):
        note = published(place, key, age=age).parent / "meta.json"
        before = note.stat().st_mtime
        assert cache.valid(key)
        assert (note.stat().st_mtime > before) == (age > 86400)


def test_the_least_recently_used_entry_is_evicted_first(place):
    for key, age in zip(KEYS[:3], (10, 30, 20), strict=True):
        published(place, key, b"x" * 100, age=age)
    assert [entry.key for entry in upkeep.entries(place)] == [KEYS[0], KEYS[2], KEYS[1]]
    assert [entry.key for entry in upkeep.collect(place, max_age=25)] == [KEYS[1]]
    most = upkeep.entries(place)[0].size
    assert [entry.key for entry in upkeep.collect(place, max_bytes=most)] == [KEYS[2]]
    assert place.published() == [KEYS[0]]


def test_an_entry_under_construction_is_not_evicted(place):
    for key in KEYS[:2]:
        published(place, key, age=10)
    with place.lock(KEY, 1):
        assert [entry.key for entry in upkeep.collect(place, max_bytes=0)] == [KEYS[1]]
    assert place.published() == [KEY]


def test_verify_names_only_broken_entries(place):
    library = published(place)
    published(place, KEYS[1])
    assert upkeep.verify(place) == {}
    library.write_bytes(b"c0de")
    assert upkeep.verify(place) == {KEY: "digests differ"}


def test_the_quarantine_keeps_twenty_entries(place):
    for number in range(23):
        published(place, KEY, bytes([number]))
        assert place.quarantine(KEY)
    assert len(list((place.root / "quarantine").iterdir())) == 20
    assert not place.quarantine(KEY)


# Bundles.


def test_a_bundle_contains_entries_of_the_architecture_and_host_libraries(place, tmp_path):
    published(place, KEYS[0], arch="sm_90a")
    published(place, KEYS[1], arch="sm_80")
    published(place, KEYS[2], arch="host")
    published(place, KEYS[3], arch="sm_90a").write_bytes(b"c0de")
    assert bundle.export(place, tmp_path / "b.tar", "sm_90a") == [KEYS[0], KEYS[2]]
    assert bundle.export(place, tmp_path / "b.tar") == KEYS[:3]


def test_an_import_returns_the_keys_that_were_new(place, tmp_path):
    for key in KEYS[:2]:
        published(place, key)
    bundle.export(place, tmp_path / "b.tar")
    other = Store(Path(tmp_path / "other"))
    published(other, KEYS[1])
    assert bundle.import_(other, tmp_path / "b.tar") == [KEYS[0]]
    assert bundle.import_(other, tmp_path / "b.tar") == []
    assert other.published() == KEYS[:2]
