"""Builds that die, hang, report wrong results or print endlessly: published entries stay valid, and no process
is left running.
"""

import os
import signal
import time

import pytest

from opfacade import errors, jit
from opfacade.jit import cache, runner
from opfacade.jit import fault_points as faults
from opfacade.jit.cache import upkeep
from tests.jit.conftest import TINY
from tests.jit.fakes import alive, eventually, join, start, working_below


def sound():
    return upkeep.verify(cache.shared()) == {}


def die_at(step):
    def hook(now):
        if now == step:
            os.kill(os.getpid(), signal.SIGKILL)

    faults.hook = hook
    jit.build(TINY)


@pytest.mark.parametrize("step", faults.STEPS)
def test_the_cache_is_sound_after_a_process_is_killed_at_any_step(toolkit, step):
    assert join([start(die_at, step)]) == [-signal.SIGKILL]
    assert eventually(lambda: not working_below(cache.root()), 2)
    assert sound()
    before = len(toolkit.calls())
    assert join([start(jit.build, TINY)]) == [0]
    published = faults.STEPS.index(step) >= faults.STEPS.index("renamed")
    assert len(toolkit.calls()) - before == (0 if published else 1)
    assert sound()


@pytest.mark.parametrize("step", [s for s in faults.STEPS if s not in ("lock.held", "indexed", "verified")])
def test_a_disk_error_at_any_step_leads_to_a_private_build(toolkit, step, monkeypatch):
    failed = []

    def hook(now):
        if now == step and not failed:
            failed.append(step)
            raise OSError(28, "No space left on device", "/x")

    monkeypatch.setattr(faults, "hook", hook)
    with pytest.warns(errors.CachePrivateWarning, match="No space left on device"):
        assert jit.build(TINY).is_file()
    assert failed
    assert sound()
    assert not cache.shared().root.joinpath("tmp").exists() or not list((cache.shared().root / "tmp").iterdir())


def test_the_hook_is_called_at_every_step_in_order(toolkit, monkeypatch):
    seen = []
    monkeypatch.setattr(faults, "hook", seen.append)
    jit.build(TINY)
    assert tuple(seen) == faults.STEPS


@pytest.mark.parametrize("real", [False, True], ids=["fake nvcc", "nvcc"])
def test_no_compiler_outlives_its_python_process(toolkit, request, real, monkeypatch, tmp_path):
    spec, name = TINY, "nvcc"
    if real:
        monkeypatch.delenv("OPFACADE_NVCC")
        spec, name = request.getfixturevalue("scale"), "cicc"
        monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / "cache"))
    toolkit.mode("sleep 60")
    child = start(jit.build, spec)
    assert eventually(lambda: any(comm == name for _, comm in working_below(tmp_path / "cache")), 30)
    os.kill(child, signal.SIGKILL)
    join([child])
    assert eventually(lambda: not working_below(tmp_path / "cache"))
    assert sound()


def test_a_killed_supervisor_ends_ninja(toolkit, tmp_path):
    toolkit.mode("sleep 60")
    child = start(jit.build, TINY)
    assert eventually(lambda: toolkit.calls())
    supervisor = next(pid for pid, comm in working_below(tmp_path / "cache") if comm.startswith("python"))
    os.kill(supervisor, signal.SIGKILL)
    assert join([child]) == [1]
    assert eventually(lambda: not any(comm == "ninja" for _, comm in working_below(tmp_path / "cache")))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["sleep 1000000", "spam"])
def test_a_compiler_that_does_not_end_is_killed(toolkit, mode, monkeypatch):
    monkeypatch.setenv("OPFACADE_JIT_TIMEOUT", "0.7")
    monkeypatch.setattr(runner, "_MAX_FILE_BYTES", 8 << 20)
    toolkit.mode(mode)
    with pytest.raises(errors.CompileTimeout if "sleep" in mode else errors.CompileError):
        jit.build(TINY)
    assert not any(alive(pid) for pid in toolkit.calls())
    assert not list((cache.root() / "tmp").iterdir())


def test_endless_compiler_output_is_truncated_in_the_log(toolkit, monkeypatch):
    monkeypatch.setattr(runner, "_MAX_OUTPUT_BYTES", 10_000)
    monkeypatch.setattr(runner, "_MAX_FILE_BYTES", 8 << 20)
    toolkit.mode("spam")
    with pytest.raises(errors.CompileError) as caught:
        jit.build(TINY)
    assert os.stat(caught.value.log_path).st_size < 20_000


def test_a_compiler_that_succeeds_without_output_file_is_an_error(toolkit):
    toolkit.mode("nothing")
    with pytest.raises(errors.CompileError):
        jit.build(TINY)
    assert not cache.entry(jit.key(TINY)).exists()


@pytest.mark.parametrize("wrote", ["", "exit 0", "echo text"], ids=["nothing", "empty", "text"])
def test_a_linker_that_writes_no_library_is_an_error(toolkit, monkeypatch, tmp_path, wrote):
    lying = tmp_path / "c++"
    out = "" if not wrote else f"for a; do case $a in kernel.so) ({wrote}) > kernel.so;; esac; done;"
    lying.write_text(f"#!/bin/sh\n: > binding.o\n{out}\nexit 0\n")
    lying.chmod(0o755)
    monkeypatch.setenv("OPFACADE_CXX", str(lying))
    with pytest.raises(errors.CompileError, match="OPF-J03"):
        jit.build(TINY)
    assert not cache.entry(jit.key(TINY)).exists()


def test_a_missing_object_file_is_not_mistaken_for_a_cleared_cache(toolkit, monkeypatch):
    monkeypatch.setenv("OPFACADE_CXX", "/bin/true")
    with pytest.raises(errors.CompileError):
        jit.build(TINY)
    assert len(toolkit.calls()) == 1


def test_a_failed_compile_is_an_error_even_if_it_leaves_an_output_file(toolkit, monkeypatch, tmp_path):
    failing = tmp_path / "c++"
    failing.write_text('#!/bin/sh\n/usr/bin/g++ "$@"\nexit 3\n')
    failing.chmod(0o755)
    monkeypatch.setenv("OPFACADE_CXX", str(failing))
    with pytest.raises(errors.CompileError) as caught:
        jit.build(TINY)
    assert caught.value.returncode == 3
    assert not cache.entry(jit.key(TINY)).exists()


@pytest.mark.parametrize("content", ["", "not a program", "#!/no/such/shell\n"], ids=["empty", "text", "bad script"])
def test_an_nvcc_that_is_not_executable_raises_a_compile_error(toolkit, content):
    toolkit.nvcc.unlink()
    toolkit.nvcc.write_text(content)
    toolkit.nvcc.chmod(0o755)
    with pytest.raises(errors.CompileError):
        jit.build(TINY)


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.15, 0.3])
def test_an_interrupt_is_raised_and_leaves_no_files(toolkit, moment, tmp_path):
    toolkit.mode("sleep 60")

    def interrupted():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            jit.build(TINY)

    child = start(interrupted)
    eventually(lambda: toolkit.calls())
    time.sleep(moment)
    os.kill(child, signal.SIGINT)
    assert join([child]) == [0]
    assert working_below(tmp_path / "cache") == []
    assert not list((cache.root() / "tmp").iterdir())


def test_an_interrupt_ends_the_wait_for_a_lock(toolkit):
    ready, go = os.pipe()

    def waiting():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faults.hook = lambda step: step == "lock.take" and os.write(go, b"x")
        with pytest.raises(KeyboardInterrupt):
            jit.build(TINY)

    with cache.lock(jit.key(TINY), 1):
        child = start(waiting)
        for _ in range(3):  # the process has tried the lock, slept, and tried again
            os.read(ready, 1)
        os.kill(child, signal.SIGINT)
        assert join([child]) == [0]


def lying_disk(times):
    """A hook that makes the file system return wrong bytes `times` times."""

    def hook(step):
        if step == "shard.synced" and times:
            times.pop()
            so = next(cache.entry(jit.key(TINY)).glob("*.so"))
            so.write_bytes(so.read_bytes()[:-1] + b"?")

    return hook


def test_wrong_bytes_from_the_disk_once_cause_one_more_build(toolkit, monkeypatch):
    monkeypatch.setattr(faults, "hook", lying_disk([1]))
    assert jit.build(TINY).is_file()
    assert len(toolkit.calls()) == 2
    assert len(list((cache.root() / "quarantine").iterdir())) == 1


@pytest.mark.parametrize("broken_before", [False, True])
def test_repeated_wrong_bytes_from_the_disk_are_an_error_with_both_digests(toolkit, monkeypatch, broken_before):
    if broken_before:
        jit.build(TINY).write_bytes(b"")
    before = len(toolkit.calls())
    monkeypatch.setattr(faults, "hook", lying_disk([1, 2, 3]))
    with pytest.raises(errors.CacheIntegrityError, match=r"expected sha256 [0-9a-f]{64}, read [0-9a-f]{64}"):
        jit.build(TINY)
    assert len(toolkit.calls()) - before == (1 if broken_before else 2)
    assert not jit.is_built(TINY)


def test_a_file_with_a_zeroed_tail_is_rebuilt(toolkit):
    """A file that was not synced may end with zeros after a power failure."""
    so = jit.build(TINY)
    good = so.read_bytes()
    so.write_bytes(good[:5000] + bytes(len(good) - 5000))
    assert jit.build(TINY).read_bytes() == good
