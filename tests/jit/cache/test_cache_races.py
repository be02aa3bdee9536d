"""Many processes and threads use one cache: they build once if locks work, and the cache stays intact if locks do not work."""

import errno
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

from opfacade import jit
from opfacade.jit import JitSpec, cache
from opfacade.jit import fault_points as faults
from opfacade.jit.cache import process_cache as private
from opfacade.jit.cache import upkeep
from tests.jit.conftest import TINY
from tests.jit.fakes import join, start


def tiny(value):
    return JitSpec.of("tiny", "testing/tiny", "sm_80", value=value)


def together(count, function):
    """Forks processes that start at the same moment, and returns their exit statuses."""
    at = time.time() + 0.3 + count * 0.01

    def run(number):
        time.sleep(max(0.0, at - time.time()))
        function(number)

    return join([start(run, number) for number in range(count)])


def sound():
    return upkeep.verify(cache.shared()) == {}


def test_processes_compile_once(toolkit):
    toolkit.mode("sleep 0.3")
    assert together(12, lambda _: jit.load(TINY)) == [0] * 12
    assert len(toolkit.calls()) == 1
    assert not list((cache.root() / "tmp").iterdir())


def test_without_working_locks_one_entry_is_published(toolkit):
    def unlocked(_):
        def hook(step):
            if step == "lock.take":
                raise OSError(errno.ENOLCK, "No locks available")

        faults.hook = hook
        jit.load(TINY)

    assert together(8, unlocked) == [0] * 8
    assert 1 <= len(toolkit.calls()) <= 8
    assert len(cache.shared().published()) == 1
    assert sound()
    assert not (cache.root() / "quarantine").exists()


def test_removed_lock_files_cause_only_additional_builds(toolkit):
    end = time.monotonic() + 2

    def remover():
        while time.monotonic() < end:
            shutil.rmtree(cache.root() / "locks", ignore_errors=True)

    pid = start(remover)
    assert together(8, lambda _: jit.load(TINY)) == [0] * 8
    join([pid])
    assert len(cache.shared().published()) == 1
    assert sound()


def clearing(seconds, workers, remove):
    """Workers load new kernels in a loop while another process runs `remove` on their cache."""
    end = time.monotonic() + seconds

    def remover():
        while time.monotonic() < end:
            remove()
            time.sleep(0.02)

    def work(number):
        value = number % 3
        while time.monotonic() < end:
            value += 3
            jit.load(tiny(value % 12))
            jit.forget()

    pids = [start(remover), *(start(work, number) for number in range(workers))]
    return join(pids)


@pytest.mark.filterwarnings("ignore::opfacade.errors.CachePrivateWarning")
@pytest.mark.parametrize(("seconds", "workers"), [(3, 4), pytest.param(60, 16, marks=pytest.mark.heavy)])
def test_no_process_fails_while_the_cache_is_cleared_repeatedly(toolkit, seconds, workers):
    def remove():
        subprocess.run(["rm", "-rf", cache.root() / "obj", cache.root() / "tmp", cache.root() / "locks"], stderr=-3)

    assert set(clearing(seconds, workers, remove)) == {0}
    assert sound()


@pytest.mark.parametrize(("seconds", "workers"), [(2, 3), pytest.param(30, 16, marks=pytest.mark.heavy)])
def test_no_process_fails_while_entries_are_evicted_repeatedly(toolkit, seconds, workers):
    assert set(clearing(seconds, workers, lambda: upkeep.collect(cache.shared(), max_bytes=0))) == {0}
    assert sound()
    assert not private.stores()


def test_threads_build_each_kernel_once(toolkit):
    found = []
    threads = [threading.Thread(target=lambda n=n: found.append(jit.load(tiny(n % 4)))) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 32
    assert len({id(module) for module in found}) == len(toolkit.calls()) == 4


def test_a_fork_during_a_build_inherits_no_lock(toolkit):
    toolkit.mode("sleep 0.5")
    builder = threading.Thread(target=jit.load, args=(TINY,))
    builder.start()
    while not toolkit.calls():
        time.sleep(0.01)
    children = [start(jit.load, TINY) for _ in range(4)] + [start(jit.load, tiny(n)) for n in range(2)]
    builder.join()
    assert join(children) == [0] * 6
    assert len(toolkit.calls()) == 3


def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(toolkit):
    """The child is forked while the parent holds the lock, and outlives the parent."""
    reading, writing = os.pipe()

    def parent():
        with cache.lock("k", 1):
            child = start(time.sleep, 250)
            os.write(writing, b"%d\n" % child)
            os.kill(os.getpid(), 9)

    assert join([start(parent)]) == [-9]
    child = int(os.read(reading, 20))
    with cache.lock("k", 1):
        pass
    os.kill(child, 9)


def test_forked_children_use_modules_that_the_parent_has_loaded(toolkit):
    module = jit.load(TINY)

    def child():
        assert jit.load(TINY) is module
        assert jit.load(tiny(5)) is not module

    assert join([start(child) for _ in range(4)]) == [0] * 4


def test_a_spawned_process_finds_existing_entries(toolkit):
    jit.build(TINY)
    code = "from opfacade import jit; jit.load(jit.JitSpec.of('tiny', 'testing/tiny', 'sm_80', value=42), allow_build=False)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_processes_with_the_same_pid_have_separate_staging_directories(toolkit, monkeypatch):
    """In containers, every process may have pid 1."""
    seen = []

    def hook(step):
        if step == "staging.made":
            seen.append(sorted((cache.root() / "tmp").iterdir()))

    monkeypatch.setattr(faults, "hook", hook)
    with cache.staging() as first, cache.staging() as second:
        assert first != second
    assert len(seen[1]) == 2


def test_two_versions_of_the_package_share_a_directory_but_no_entry(toolkit, monkeypatch):
    first = jit.build(TINY)
    monkeypatch.setattr("opfacade.__version__", "99.0")
    second = jit.build(TINY)
    assert first.parent != second.parent
    assert len(toolkit.calls()) == 2
    monkeypatch.setattr("opfacade.jit.cache.store.SCHEMA", 2)
    assert cache.root().name == "v2"
    assert not jit.is_built(TINY)


def test_wrong_clocks_have_no_effect(toolkit):
    so = jit.build(TINY)
    for years in (-30, 30):
        for path in (so, so.parent / "meta.json", so.parent):
            os.utime(path, (time.time() + years * 31_556_952,) * 2)
        assert jit.build(TINY) == so
    assert len(toolkit.calls()) == 1


def test_staging_of_killed_builds_is_removed_and_of_running_builds_is_not(toolkit, monkeypatch):
    monkeypatch.setattr("opfacade.jit.cache.stale_entries._UNLOCKED_GRACE_SECONDS", 0.0)
    left = cache.root() / "tmp" / "dead"
    cache.make_private(left)
    with cache.staging() as living:
        assert cache.shared().sweep() == 1
        assert living.is_dir()
    assert not left.exists()


def test_a_library_is_loaded_while_others_evict_unlocked_entries(toolkit, monkeypatch):
    """Before each lookup of the library and each load, another process evicts all unlocked entries."""
    load = jit._open

    def removed_first(path):
        upkeep.collect(cache.shared(), max_bytes=0)
        return load(path)

    monkeypatch.setattr(jit, "_open", removed_first)
    assert jit.load(tiny(0), label="sku") is jit.load(tiny(0))
    assert len(toolkit.calls()) == 2  # one attempt more than with a cache in which nothing is evicted
