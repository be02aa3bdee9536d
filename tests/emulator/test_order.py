"""Accesses to shared memory that no barrier orders (order.h), in small kernels (order_pieces.cc) and in the kernels of the
package."""

import ctypes

import pytest
import torch

from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulDescriptor, Scaling
from opfacade.testing import matrix
from tests import emulator
from tests.emulator import builds
from tests.emulator.parts import library
from tests.families.matmul.test_coded_kernel import made as codes
from tests.families.matmul.test_k_groups_kernel import FORMS as RANGES
from tests.support.assemblers import any_assembler

pytestmark = emulator.needed

ORDERED = (
    "arrivals_of_each_lane", "arrivals_of_warps", "threads_of_a_block", "a_named_barrier", "blocks_of_a_cluster",
    "the_barrier_of_a_copy", "nothing_is_needed",
)  # fmt: skip
RACES = (
    "not_a_lane_that_wrote", "not_a_lane_that_read", "not_a_vote", "not_a_relaxed_cluster_barrier", "not_an_atomic",
    "not_a_copy_without_a_wait", "not_an_arrival_after_a_copy",
)  # fmt: skip


def runs(name, monkeypatch, watched):
    monkeypatch.setenv("SIMT_ORDER", watched)
    seen = torch.empty(32, dtype=torch.int32)
    return getattr(library("order_pieces", *builds.WATCHED), f"run_{name}")(ctypes.c_void_p(seen.data_ptr()))


@pytest.mark.parametrize("name", ORDERED)
def test_accesses_that_a_barrier_orders_are_no_race(name, monkeypatch):
    assert runs(name, monkeypatch, "1")


@pytest.mark.parametrize("name", RACES)
def test_unordered_accesses_are_a_race(name, monkeypatch):
    assert runs(name, monkeypatch, ""), "it ends, so only the race fails it"
    assert not runs(name, monkeypatch, "1")


BLOCK = Scaling(kind="block")
# The loops over k go around each ring more than once.
KERNELS = {
    "blocks": MatmulDescriptor(total_num_rows=7, n=40, k=2600, dtype="f8_e4m3", scaling=BLOCK),
    "odd rows": GroupedMatmulDescriptor(groups=2, total_num_rows=20, n=40, k=2600, dtype="f8_e4m3", scaling=BLOCK),
    "codes": codes(k=1600),
    "codes of many rows": codes(rows=130, n=300, k=448, sm_limit=1),
    "ranges": RANGES["gradients"],
}
ATTENTION = ("mla-rows", "decode-auto", "prefill-off-fp8-head", "prefill-off-fp8-products")
KERNELS |= {name: matrix.matrix()[name] for name in ATTENTION}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.heavy if name in ATTENTION else ()) for name in KERNELS])
def test_the_kernels_of_the_package_have_no_race(name):
    subject = emulator.subject(KERNELS[name])
    with emulator.watching(), any_assembler():
        subject.run(subject.args(1))
