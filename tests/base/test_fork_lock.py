"""A forked child can take every lock that a thread of its parent held at the fork."""

import ast
import os
import threading
from pathlib import Path

import pytest

from opfacade.base.fork_lock import ForkLock
from tests.jit.fakes import join, start

PACKAGE = Path(__file__).parents[2] / "opfacade"
# These locks are renewed by handlers in their modules; the last ones exist only during one command that does not fork.
OWN_HANDLERS = {"base/fork_lock.py", "programs/node.py", "jit/__init__.py", "jit/cache/process_cache.py", "tools/warmup.py"}
OWN_HANDLERS |= {"distributed/group.py"}  # a group refuses calls in a forked child before it acquires its lock


@pytest.fixture
def held():
    """A lock that another thread holds."""
    lock, taken, over = ForkLock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            taken.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(60)
    yield lock
    over.set()
    thread.join()


def test_a_child_takes_a_lock_that_a_thread_held(held):
    def take():
        assert not held.locked()
        with held:
            assert held.locked()

    assert held.locked()
    assert join([start(take)]) == [0]
    assert held.locked()


def test_who_forks_while_holding_it_goes_on_in_both_processes():
    lock = ForkLock()
    with lock:
        pid = os.fork()
        if pid == 0:
            lock._held.release()  # end of the child process, without the rest of the test run
            with lock:
                os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not lock.locked()


def test_a_lock_is_open_after_an_exception():
    lock = ForkLock()
    with pytest.raises(KeyError), lock:
        raise KeyError
    assert not lock.locked()


def test_every_lock_of_the_package_is_renewed_after_a_fork():
    made = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Lock", "threading.RLock", "Lock", "RLock"):
                made.add(str(path.relative_to(PACKAGE)))
    assert made == OWN_HANDLERS
