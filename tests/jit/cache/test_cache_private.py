"""If the shared cache is unusable, a process compiles privately, warns once, and the kernel runs.

Mounts are created in a private mount namespace, which needs root; otherwise these tests are skipped.
"""

import errno
import itertools
import logging
import multiprocessing
import os
import pwd
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from opfacade import errors, jit
from opfacade.jit import cache, fault_points
from opfacade.jit import fault_points as faults
from opfacade.jit.cache import locks
from opfacade.jit.cache import process_cache as private
from tests.jit.conftest import TINY
from tests.jit.fakes import join, start
from tests.support.python_path import python_path

REPO = Path(__file__).resolve().parents[3]


def can_mount():
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


mounts = pytest.mark.skipif(not can_mount(), reason="needs root and mount namespaces")

BUILD = """
import sys, time, warnings
from opfacade import errors, jit
import tvm_ffi
tiny = jit.JitSpec.of("tiny", "testing/tiny", "sm_80", value=int(sys.argv[1]))
started = time.monotonic()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        if sys.argv[2:] == ["twice"]:
            jit.build(jit.JitSpec.of("tiny", "testing/tiny", "sm_80", value=99))
        module = jit.load(tiny)
        print("loaded", jit.cache_state(tiny))
    except errors.CacheError as error:
        print("refused", error.errno, error)
own = [w for w in caught if issubclass(w.category, errors.CachePrivateWarning)]
print("warnings", len(own), "seconds", time.monotonic() - started)
"""


def mounted(script, *words, **env):
    """The output of BUILD in a mount namespace, after a shell script; `$C` is the cache directory, and `$P` starts BUILD."""
    whole = {
        **os.environ,
        "C": os.environ["OPFACADE_CACHE_DIR"],
        "PYTHONPATH": python_path(REPO),
        "B": BUILD,
        "PY": sys.executable,
    }
    done = subprocess.run(
        ["unshare", "-m", "sh", "-e", "-c", f'P() {{ "$PY" -c "$B" "$@"; }}\nmkdir -p $C\n{script}', "sh", *words],
        env=whole | env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@mounts
def test_a_read_only_cache_is_read_and_other_kernels_are_built_privately(toolkit):
    jit.build(TINY)
    before = sorted((cache.root()).rglob("*"))
    out = mounted("mount --bind $C $C; mount -o remount,ro,bind $C; P 42; P 44 twice")
    assert [line.split()[:3] for line in out.splitlines()] == [
        ["loaded", "shared"], ["warnings", "0", "seconds"],
        ["loaded", "private"], ["warnings", "1", "seconds"],
    ]  # fmt: skip
    assert float(out.splitlines()[3].split()[-1]) < 20
    assert sorted((cache.root()).rglob("*")) == before


@mounts
@pytest.mark.parametrize("options", ["size=16k", "nr_inodes=20", "size=128k"], ids=["blocks", "inodes", "library"])
def test_with_a_full_disk_the_kernel_is_built_privately(toolkit, options):
    fill = "head -c 110k /dev/zero > $C/filler;" if options == "size=128k" else ""
    out = mounted(f"mount -t tmpfs -o {options},mode=700 none $C; {fill} P 42; find $C -path '*obj*' -type f")
    assert out.splitlines()[0] == "loaded private", out
    assert out.splitlines()[1].startswith("warnings 1")
    assert len(out.splitlines()) == 2


@mounts
def test_with_all_disks_full_the_error_has_its_errno(toolkit):
    out = mounted("mount -t tmpfs -o size=16k,mode=700 none $C; mkdir $C/tmp; TMPDIR=$C/tmp P 42")
    assert out.startswith(f"refused {errno.ENOSPC} ")


@mounts
def test_a_noexec_cache_is_reported_with_a_remedy(toolkit):
    out = mounted("mount -t tmpfs -o noexec,mode=700 none $C; P 42")
    assert out.startswith(f"refused {errno.EPERM} ")
    assert "mounted noexec. Set OPFACADE_CACHE_DIR" in out


def test_a_compiler_error_about_a_full_disk_leads_to_a_private_build(toolkit):
    toolkit.mode("full")
    with pytest.warns(errors.CachePrivateWarning), pytest.raises(errors.CacheError) as caught:
        jit.build(TINY)
    assert caught.value.errno == errno.ENOSPC
    assert len(toolkit.calls()) == 2


def test_without_home_and_passwd_entry_the_cache_is_private(toolkit, monkeypatch, tmp_path):
    for name in ("OPFACADE_CACHE_DIR", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    monkeypatch.chdir(tmp_path)
    with pytest.warns(errors.CachePrivateWarning, match="home directory"):
        path = jit.build(TINY)
    assert jit.cache_state(TINY) == cache.state(path) == "private"
    assert private.stores()[0].base.stat().st_mode & 0o777 == 0o700
    assert not Path("~").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_other_users_read_a_cache_that_root_has_written(toolkit, tmp_path):
    jit.build(TINY)
    for part in (tmp_path, *tmp_path.parents):
        if part.is_relative_to("/tmp/") and part != Path("/tmp"):
            part.chmod(0o711)
    for folder in (toolkit.home, tmp_path / "root", tmp_path / "cache"):
        subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)

    def somebody():
        os.setgroups([])
        os.setuid(65534)
        assert jit.cache_state(TINY) == "shared"
        with pytest.raises(errors.CacheError) as caught, cache.lock("k", 1):
            pass
        assert caught.value.errno == errno.EACCES  # the errno for which `obtain` builds privately

    assert join([start(somebody)]) == [0]


def test_a_stopped_lock_holder_leads_to_a_private_build(toolkit, monkeypatch):
    """The holder is stopped by SIGSTOP, a debugger or a frozen container: it keeps the lock and does nothing."""
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()

    def hold():
        with cache.lock(jit.key(TINY), 1):
            ready.set()
            time.sleep(60)

    holder = start(hold)
    assert ready.wait(120)
    os.kill(holder, signal.SIGSTOP)
    monkeypatch.setenv("OPFACADE_JIT_TIMEOUT", "0.5")  # limits the wait for the lock, not the build

    def be_patient(step):
        if step == "staging.made":
            monkeypatch.setenv("OPFACADE_JIT_TIMEOUT", "60")

    monkeypatch.setattr(faults, "hook", be_patient)
    with pytest.warns(errors.CachePrivateWarning, match=f"held by pid {holder} on "):
        path = jit.build(TINY)
    assert jit.cache_state(TINY) == cache.state(path) == "private"
    os.kill(holder, signal.SIGKILL)
    join([holder])


def test_a_long_wait_is_logged_with_the_holder(toolkit, monkeypatch, caplog):
    clock = itertools.count(0.0, 0.1)  # a clock of the test, which advances by a tenth of a second per call
    ours = SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None, time=lambda: 1000.0)
    monkeypatch.setattr(locks, "time", ours)
    monkeypatch.setattr(locks, "LOG_AFTER_SECONDS", 0.1)
    with cache.lock("k", 1), pytest.raises(errors.CacheLockTimeout), cache.lock("k", 0.9):
        pass
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert f"held by pid {os.getpid()} on {os.uname().nodename}, for 0 s" in record.getMessage()


def test_one_warning_per_process_and_the_private_directory_is_removed_at_exit(toolkit, tmp_path):
    def unwritable(place):
        def hook(step):
            if step == "lock.open" and not private.stores():
                raise OSError(errno.EROFS, "Read-only file system")

        fault_points.hook = hook
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            jit.build(TINY)
            jit.build(TINY)
        assert len(caught) == 1
        place.write_text(str(private.stores()[0].base))
        private._remove(private.stores()[0].base, os.getpid())

    assert join([start(unwritable, tmp_path / "place")]) == [0]
    assert not Path((tmp_path / "place").read_text()).exists()
