"""A group states the links of its target, its name, and that it failed."""

import os
from types import SimpleNamespace

import pytest
import torch

from opfacade.core.links import NO_LINKS
from opfacade.distributed import Group, linked, setup
from opfacade.distributed.link import Link
from opfacade.distributed.peers import PeerLink


def of_gpu_1(kind):
    link = object.__new__(kind)
    link.device = torch.device("cuda", 1)
    return link


def detected(matrix):
    def detect(device_type, connection):
        assert connection == "nvlink"
        if matrix is None:
            raise RuntimeError("no driver")
        return SimpleNamespace(matrix=matrix)

    return detect


@pytest.mark.parametrize(
    ("matrix", "kind"),
    [
        ([[0, 18], [18, 0]], "nvlink"),
        ([[0, 1, 0], [1, 0, 1], [0, 1, 0]], "nvlink"),
        ([[0, 1, 1], [1, 0, 0], [1, 0, 0]], "pcie"),
        ([[0, 0], [0, 0]], "pcie"),
        (None, "pcie"),
    ],
)
def test_links_are_nvlink_if_it_connects_this_gpu_with_each_other_one(monkeypatch, matrix, kind):
    monkeypatch.setattr(torch._C._distributed_c10d, "_detect_dma_connectivity", detected(matrix))
    assert linked.links_of(of_gpu_1(PeerLink)).kind == kind


def test_a_torch_that_detects_nothing_has_no_nvlink(monkeypatch):
    monkeypatch.delattr(torch._C._distributed_c10d, "_detect_dma_connectivity")
    assert linked.links_of(of_gpu_1(PeerLink)).kind == "pcie"


def test_a_group_that_writes_to_no_peers_has_no_links():
    assert linked.links_of(None) == linked.links_of(of_gpu_1(Link)) == NO_LINKS


class Unnamed:
    """A bare process group, which torch gave no name."""

    @property
    def group_name(self):
        raise RuntimeError("no name")


@pytest.mark.parametrize(("process_group", "name"), [(SimpleNamespace(group_name="tp"), "tp"), (Unnamed(), "group")])
def test_a_group_has_the_name_that_torch_gave_it(process_group, name):
    assert setup.name_of(process_group) == name


def test_a_group_that_failed_says_so_and_what_to_do():
    group = object.__new__(Group)
    group._pid, group._failure = os.getpid(), "rank 1 left"
    (issue,) = group.issues(None)
    assert (issue.code, issue.argument, issue.expected, issue.got) == (
        "OPF-N004", "group", "a group without a failure", "rank 1 left",
    )  # fmt: skip
