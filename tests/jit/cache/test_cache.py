import json
import multiprocessing
import os
import time

import pytest

from opfacade import errors, jit
from opfacade.jit import cache


def build_and_count(spec, start, done):
    from opfacade import telemetry

    start.wait()
    jit.build(spec, label="sku")
    done.put(telemetry.snapshot().get("sku", {}).get("builds", 0))


def test_eight_cold_processes_compile_once(tiny):
    fork = multiprocessing.get_context("fork")
    start, done = fork.Event(), fork.Queue()
    workers = [fork.Process(target=build_and_count, args=(tiny, start, done)) for _ in range(8)]
    for worker in workers:
        worker.start()
    start.set()
    counts = [done.get(timeout=240) for _ in workers]
    for worker in workers:
        worker.join()
    assert sorted(counts) == [0] * 7 + [1]
    assert not list((cache.root() / "tmp").iterdir())


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "remove", "symlink", "meta", "no meta"])
def test_a_damaged_entry_is_set_aside_and_rebuilt(built_tiny, damage):
    so = jit.build(built_tiny)
    before, meta = so.read_bytes(), so.parent / "meta.json"
    if damage == "truncate":
        os.truncate(so, len(before) // 2)
    elif damage == "flip":
        so.write_bytes(before[:500] + bytes([before[500] ^ 1]) + before[501:])
    elif damage == "empty":
        so.write_bytes(b"")
    elif damage == "remove":
        so.unlink()
    elif damage == "symlink":
        so.rename(so.with_suffix(".away"))
        so.symlink_to(so.with_suffix(".away"))
    elif damage == "meta":
        meta.write_text("[")
    else:
        meta.unlink()
    assert not jit.is_built(built_tiny)
    assert jit.build(built_tiny).read_bytes() == before
    assert jit.is_built(built_tiny)
    assert len(list((cache.root() / "quarantine").iterdir())) == 1


def test_an_entry_and_all_its_directories_are_private(tiny):
    old = os.umask(0)
    try:
        so = jit.build(tiny)
    finally:
        os.umask(old)
    made = [so.parent, *so.parent.parents][:5]  # <key>, <kk>, obj, v1, the cache directory
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}


def test_what_is_recorded_says_what_was_built(built):
    entry = jit.build(built).parent
    meta = json.loads((entry / "meta.json").read_text())
    assert meta["key"] == jit.key(built) == entry.name
    assert meta["source_digest"] == jit.source_digest(built)
    assert meta["resources"]["scale"]["registers"] > 0
    kept = {"kernel.cubin", "build.ninja", "build.log", "meta.json", "scale.cu", "scale.cc", meta["so"]}
    assert {path.name for path in entry.iterdir()} == kept


def test_the_loser_of_a_race_uses_what_the_winner_published(cache_dir):
    made = []
    for content in (b"first", b"second"):
        with cache.staging() as staging:
            (staging / "kernel.so").write_bytes(content)
            made.append(cache.publish("ab" * 32, staging, "kernel.so", {}))
    assert made[0] == made[1]
    assert made[0].read_bytes() == b"first"


def test_a_lock_that_is_held_ends_in_a_timeout(cache_dir):
    with cache.lock("k", 1), pytest.raises(errors.CacheLockTimeout, match="OPF-J022"), cache.lock("k", 0.1):
        pass


def test_a_lock_file_that_was_replaced_is_taken_again(cache_dir):
    path = cache.root() / "locks/k.lock"
    with cache.lock("k", 1):
        path.unlink()  # as clearing the cache does
        with cache.lock("k", 1):
            assert path.exists()
    assert path.exists()


def hold_lock(ready):
    with cache.lock("k", 1):
        ready.set()
        time.sleep(250)


def test_a_killed_holder_frees_the_lock(cache_dir):
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()
    holder = fork.Process(target=hold_lock, args=(ready,))
    holder.start()
    assert ready.wait(120)
    holder.kill()
    holder.join()
    with cache.lock("k", 5):
        pass


def test_a_lock_is_not_followed_through_a_link(cache_dir, tmp_path):
    cache.make_private(cache.root() / "locks")
    (cache.root() / "locks/k.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.CacheError, match="cannot lock") as caught, cache.lock("k", 1):
        pass
    assert caught.value.errno
    assert not (tmp_path / "elsewhere").exists()


def test_a_cache_directory_that_cannot_be_made_is_a_cache_error(tiny, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / "file/cache"))
    with pytest.raises(errors.CacheError, match="OPFACADE_CACHE_DIR"):
        jit.build(tiny)
