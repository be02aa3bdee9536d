"""The links of a target: by what the GPUs of a group are connected, where kernels write to the memory of peers."""

from types import SimpleNamespace

import pytest
import torch

from opfacade.core.links import NO_LINKS
from opfacade.distributed import linked
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
