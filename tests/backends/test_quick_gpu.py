"""Replayed runs of a binding do the same as full runs, on the current stream."""

import math
from dataclasses import replace

import pytest
import torch

from opfacade.core.descriptor import operands_of
from opfacade.testing import inputs, matrix
from opfacade.testing.bits import fill
from opfacade.testing.families.attention.requests import same_bits
from opfacade.testing.subject import Subject
from tests.support.accepted import accepted
from tests.support.build_first import build_first

pytestmark = pytest.mark.gpu

ALL = matrix.matrix()
SOME = (
    "decode-auto",
    "decode-cluster",
    "decode-teams",
    "mla-auto",
    "prefill-auto-causal",
    "ragged-auto-fp8-products",
    "merge-bf16",
)
KEPT_AFTER = 4  # runs: the full path, the fast path, the quick path, and again to be recorded


@pytest.fixture(scope="module", autouse=True)
def _built():
    build_first(ALL.values())


def written(descriptor):
    return [name for name, spec in operands_of(descriptor).items() if spec.written]


class Pair:
    """The same call twice, on separate memory: one runs like a user's call, one through the full binding."""

    def __init__(self, kind):
        self.descriptor = ALL[kind]
        self.plan = accepted(Subject(self.descriptor, "cuda", "cuda")).plan
        self.names = written(self.descriptor)
        self.ours = inputs.make_args(self.descriptor, seed=3, device="cuda")
        self.other = replace(self.ours, **{name: getattr(self.ours, name).clone() for name in self.names})
        self.workspaces = [torch.empty(self.plan.workspace_size, dtype=torch.uint8, device="cuda") for _ in range(2)]

    def run(self):
        self.plan.run(self.ours, self.workspaces[0])

    def spoil(self):
        for name in self.names:
            if operands_of(self.descriptor)[name].role == "out":  # operands that are also read keep their content
                fill(getattr(self.ours, name), math.nan)
        self.workspaces[0].fill_(255)

    def agrees(self):
        self.plan._load()(self.other, self.workspaces[1])
        return all(same_bits(getattr(self.ours, name), getattr(self.other, name)) for name in self.names)

    def is_kept(self):
        return self.plan._replay(id(self.ours), id(self.workspaces[0])) == 0


@pytest.mark.parametrize("kind", ALL)
def test_runs_made_again_write_what_the_full_binding_writes(kind):
    pair = Pair(kind)
    for _ in range(KEPT_AFTER + 3):
        for name in ("q", "q_nope", "k_new", "states_o"):  # other numbers in the same memory, which both calls read
            if name not in pair.names and getattr(pair.ours, name, None) is not None and getattr(pair.ours, name).itemsize > 1:
                getattr(pair.ours, name).mul_(-0.5)
        pair.spoil()
        pair.run()
        assert pair.agrees()
    assert pair.is_kept() == (pair.plan.jit_spec is not None)  # the host library replays the launches of one kernel library


@pytest.mark.parametrize("kind", SOME)
def test_a_run_made_again_goes_to_the_stream_of_the_moment(kind):
    pair, side = Pair(kind), torch.cuda.Stream()
    for _ in range(KEPT_AFTER):
        pair.run()
    torch.cuda.synchronize()
    pair.spoil()
    side.wait_stream(torch.cuda.current_stream())
    torch.cuda._sleep(20_000_000)  # work on the default stream that delays what follows
    with torch.cuda.stream(side):
        pair.run()
    side.synchronize()
    assert pair.agrees()
    torch.cuda.synchronize()


@pytest.mark.parametrize("kind", SOME)
def test_a_run_made_again_is_captured_and_replayed(kind):
    pair, graph = Pair(kind), torch.cuda.CUDAGraph()
    for _ in range(KEPT_AFTER):
        pair.run()
    with torch.cuda.graph(graph):
        pair.run()
    for _ in range(3):
        pair.spoil()
        graph.replay()
        assert pair.agrees()
