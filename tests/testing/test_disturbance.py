"""The state that `determinism` and `guarded` disturb between runs, as seen by the call under test. Their proofs
depend on it.
"""

import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch

from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.testing import determinism, guarded
from opfacade.testing.batches import EMPTY, NEIGHBOURS, DenseBatches
from opfacade.testing.bits import bits, same_bits
from opfacade.testing.determinism import QUICK
from opfacade.testing.families.attention.requests import Requests
from opfacade.testing.subject import MARGIN, Subject
from tests.support.problems import decode

MERGE = MergeStatesDescriptor(num_states=3, total_num_rows=5, num_heads=2, head_dim=64, dtype="f32")
RUNS = 60


@dataclass(frozen=True)
class Watched(Subject):
    """The reference on the CPU, with the inputs of each run; `after` may corrupt its outputs."""

    seen: list = field(default_factory=list, compare=False)
    workspaces: list = field(default_factory=list, compare=False)
    after: object = None

    def run(self, args, workspace=None):
        values = {name: getattr(args, name) for name in type(args).__slots__ if getattr(args, name) is not None}
        self.seen.append({name: (t.clone(), t.data_ptr(), t.storage_offset() * t.element_size()) for name, t in values.items()})
        super().run(args, workspace)
        if self.after:
            self.after(args, len(self.seen))

    def workspace(self, fill=0xFF, offset=0):
        self.workspaces.append((fill, offset))
        return super().workspace(fill, offset)


def watched(descriptor=MERGE, after=None):
    return Watched(descriptor, "reference", "cpu", after=after)


@pytest.fixture(scope="module")
def runs():
    subject = watched()
    assert determinism.run_to_run(subject, RUNS, seed=1).different == 0
    return subject


def test_every_run_begins_with_outputs_full_of_garbage_of_several_kinds(runs):
    for name in ("o", "lse"):
        starts = Counter()
        for given in runs.seen:
            (value,) = given[name][0].unique().tolist()[:1]
            same = given[name][0].isnan().all() or (given[name][0] == value).all()
            assert same, "an output holds what an earlier run wrote"
            starts["nan" if math.isnan(value) else value] += 1
        assert set(starts) == {0.0, 7.0, "nan", math.inf}


def test_outputs_lie_at_many_distances_from_the_start_of_their_memory(runs):
    offsets = {given["o"][2] for given in runs.seen}
    assert len(offsets) > 20
    assert all(offset % 16 == 0 for offset in offsets)


def test_inputs_move_now_and_then_and_keep_their_values(runs):
    first = runs.seen[0]["states_o"][0]
    assert all(same_bits(given["states_o"][0], first) for given in runs.seen)
    assert len({given["states_o"][1] for given in runs.seen}) > 2


def test_workspaces_hold_other_bytes_at_other_addresses(runs):
    assert len({fill for fill, _ in runs.workspaces}) > 20
    assert {offset for _, offset in runs.workspaces} == set(range(8))


def test_what_a_run_overwrites_is_put_back_before_the_next():
    subject = watched(MERGE.model_copy(update={"in_place": True}).revalidated())
    assert determinism.run_to_run(subject, 10, seed=1).different == 0
    first = subject.seen[0]["states_o"][0]
    assert all(same_bits(given["states_o"][0], first) for given in subject.seen)


@pytest.mark.parametrize("name", ["o", "lse"])
def test_every_run_is_compared_with_the_first_and_in_every_output(name):
    def spoil(args, run):
        if run > 4:
            getattr(args, name).view(-1)[0] += 1

    shown = determinism.run_to_run(watched(after=spoil), 20, seed=1)
    assert (shown.compared, shown.runs, shown.different) == (20, 20, 16)


@pytest.mark.parametrize("name", ["o", "lse"])
def test_a_fingerprint_covers_every_output(name):
    def spoil(args, run):
        getattr(args, name).view(-1)[0] += 1

    same = {determinism.fingerprint(watched(), seed=1) for _ in range(3)}
    assert len(same) == 1
    assert determinism.fingerprint(watched(after=spoil), seed=1) not in same


def test_compositions_have_empty_requests_neighbours_and_needles_in_any_order():
    rng = random.Random(1)
    orders = [determinism._composition(rng, [0] * QUICK.needles, QUICK) for _ in range(200)]
    found = {unit for order in orders for unit in order}
    assert found == {EMPTY, *range(QUICK.needles + NEIGHBOURS)}
    leading = [order[0] for order in orders if len(order) > 6]
    assert any(first >= QUICK.needles or first == EMPTY for first in leading)


def test_batches_move_in_memory_and_their_bounds_exceed_them(monkeypatch):
    from tests.testing.test_determinism import DECODE

    spares, moves = Counter(), []
    batch, moved = Requests.batch, Requests.moved
    monkeypatch.setattr(Requests, "batch", lambda self, order, spare=0: (spares.update([spare]), batch(self, order, spare))[1])
    monkeypatch.setattr(Requests, "moved", lambda self, rng: (moves.append(1), moved(self, rng))[1])
    shown = determinism.batch_invariance(Subject(DECODE, "reference", "cpu"), QUICK, 1)
    assert set(spares) == {0, 1, 100}
    assert len(moves) == shown.runs // 16 > 0


def test_neighbours_of_dense_units_are_nan_and_infinite_and_outputs_hold_neither_before():
    dense = DenseBatches.drawn(watched(), "total_num_rows", 4, random.Random(1))
    states = dense.args.states_o
    assert bool(states[:, 4::2].isnan().all())
    assert bool(states[:, 5::2].isinf().all())
    assert states.shape[1] == 4 + NEIGHBOURS
    dense.args.o.zero_()
    _, args = dense.batch([2, 0])
    assert bool(args.o.isnan().all())
    assert same_bits(args.states_lse, dense.args.states_lse[:, [2, 0]])


# -- canaries -------------------------------------------------------------------------------------------------------


def guarded_by(after):
    subject = watched(decode([9, 4, 6])[0], after)
    return guarded.run(subject, subject.args(3))


def beside(tensor, elements):
    return torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() + elements)


def test_a_write_before_an_output_is_seen():
    assert guarded_by(lambda args, run: beside(args.o, -1).zero_()) == ["written past o", "written past o"]
    assert guarded_by(lambda args, run: beside(args.o, -MARGIN // 2).zero_()) == ["written past o", "written past o"]


def test_a_result_that_is_one_of_the_patterns_is_no_gap():
    """All bits set, which is a NaN, is what outputs hold before the first run; before the second they hold another pattern."""
    assert guarded_by(lambda args, run: bits(args.o[:1]).fill_(-1)) == []


@dataclass(frozen=True)
class WithWorkspace(Watched):
    """A subject whose plan needs a workspace, and that writes as `into` specifies."""

    into: object = None

    @property
    def plan(self):
        return SimpleNamespace(workspace_size=100)

    def run(self, args, workspace=None):
        plan = Subject(self.descriptor, "reference", "cpu").plan
        plan.run(args)
        self.workspaces.append(workspace)
        self.into(workspace)


@pytest.mark.parametrize("place", [-1, 100])
def test_a_write_beside_the_workspace_is_seen(place):
    subject = WithWorkspace(MERGE, "reference", "cpu", into=lambda workspace: beside(workspace, place).zero_())
    assert guarded.run(subject, subject.args(3)) == ["written past workspace", "written past workspace"]
    sound = replace(subject, into=lambda workspace: workspace.zero_())
    assert guarded.run(sound, sound.args(3)) == []


def test_a_workspace_is_as_large_as_promised_and_lies_where_it_is_said_to():
    subject = WithWorkspace(MERGE, "reference", "cpu")
    for fill, offset in ((0, 0), (0x7F, 3)):
        found = subject.workspace(fill, offset)
        assert (found.numel(), found.unique().tolist()) == (100, [fill])
        assert found.data_ptr() % 256 == 0
        assert found.storage_offset() // 256 == offset
        assert found.untyped_storage().nbytes() == 256 * (offset + 1) + 100
