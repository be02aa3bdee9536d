import os

import pytest
import torch

from tests.support.cores import VARIABLE, here, share


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


@pytest.mark.skipif("PYTEST_XDIST_WORKER_COUNT" not in os.environ, reason="no worker of xdist")
def test_torch_was_imported_after_the_cores_were_shared():
    assert torch.get_num_threads() == min(here(), int(os.environ[VARIABLE]))
