import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cores import VARIABLE, here, share

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("workers", "cores", "threads"), [(2, 2, "1"), (2, 16, "8"), (4, 2, "1"), (3, 8, "2")])
def test_each_worker_has_its_share_of_the_cores(workers, cores, threads):
    environ = {"PYTEST_XDIST_WORKER_COUNT": str(workers)}
    share(environ, cores)
    assert environ[VARIABLE] == threads


def test_a_run_without_workers_and_a_caller_who_chose_keep_theirs():
    alone, chosen = {}, {"PYTEST_XDIST_WORKER_COUNT": "2", VARIABLE: "7"}
    share(alone, 4)
    share(chosen, 4)
    assert alone == {}
    assert chosen[VARIABLE] == "7"


def test_torch_is_imported_after_the_cores_are_shared():
    """In a process whose environment makes it a worker, with the settings of every test run."""
    code = "import tests.conftest, torch; print(torch.get_num_threads())"
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE} | {
        "PYTEST_XDIST_WORKER_COUNT": str(here())
    }
    done = subprocess.run([sys.executable, "-c", code], env=environ, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "1", done.stderr
