"""Batches of every op that guarantees equal bits in any batch, and faults that must be detected."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random

import pytest
import torch

from opfacade.core.descriptor import operands_of
from opfacade.select.registry import examples
from opfacade.testing import determinism, matrix
from opfacade.testing.bits import same_bits
from opfacade.testing.harness import harness_of
from opfacade.testing.subject import Subject, invariant
from opfacade.tools import verify
from tests import emulator
from tests.support.assemblers import any_assembler

SMALL = determinism.Campaign(needles=5, compositions=4, largest=9, longest=60, q_longest=5)
# Examples of the ops that build their batches themselves.
OWN = [d for d in examples() if d.op in ("pack_mask", "qkv_prepare") or (d.op == "dequantize" and d.quant.scale == "block")]


class Still(emulator.EmulatedSubject):
    """Writes zeros."""

    def run(self, args, workspace=None):
        for name, spec in operands_of(self.descriptor).items():
            given = getattr(args, name) if spec.written else None
            for tensor in given if isinstance(given, Sequence) else [given]:
                if tensor is not None:
                    tensor.zero_()


@cache
def claimants():
    """One CUDA subject of each SKU with this guarantee."""
    with any_assembler():
        subjects = [Still(d, "cuda", "cpu") for d in (*matrix.matrix().values(), *examples())]
        return {s.plan.sku.id: s for s in subjects if not s.declined and invariant(s)}


def test_every_promise_has_batches_that_verify_can_run():
    with any_assembler():
        for subject in claimants().values():
            shown = determinism.batch_invariance(verify.in_any_batch(subject), replace(SMALL, needles=2, compositions=2), 1)
            assert shown.different == 0 < shown.runs


@pytest.mark.parametrize("problem", OWN, ids=[f"{d.op}-{i}" for i, d in enumerate(OWN)])
@pytest.mark.parametrize("on", ["reference", "emulator"])
def test_units_have_the_same_bits_in_any_batch(problem, on):
    subject = Subject(problem, "reference", "cpu") if on == "reference" else emulator.subject(problem)
    shown = determinism.batch_invariance(subject, SMALL, 2)
    assert shown.different == 0, shown.first
    assert shown.compared >= SMALL.needles * SMALL.compositions


class SeesTheBatch(Subject):
    """The reference, whose named output changes if the batch has more than one unit."""

    name = ""

    @staticmethod
    def several(args):
        if hasattr(args, "scale"):
            return args.scale.shape[0] > 1
        return args.q.shape[0] > 1 if hasattr(args, "q") else args.packed_indptr.shape[0] > 2

    def run(self, args, workspace=None):
        super().run(args)
        tensor = getattr(args, self.name)
        if self.several(args):
            if tensor.element_size() == 4:
                tensor += tensor > 0
            else:
                tensor.view(torch.uint8).bitwise_xor_(1)


class WritesLess(SeesTheBatch):
    """The reference, which leaves the named output unchanged if the batch has more than one unit."""

    def run(self, args, workspace=None):
        before = getattr(args, self.name).clone()
        Subject.run(self, args)
        if self.several(args):
            getattr(args, self.name).copy_(before)


@pytest.mark.parametrize("fault", [SeesTheBatch, WritesLess])
@pytest.mark.parametrize("problem", OWN, ids=[f"{d.op}-{i}" for i, d in enumerate(OWN)])
def test_an_output_that_depends_on_the_batch_is_seen(problem, fault):
    written = [name for name, spec in operands_of(problem).items() if spec.written]
    for output in written:
        subject = type("Faulty", (fault,), {"name": output})(problem, "reference", "cpu")
        assert determinism.batch_invariance(subject, SMALL, 3).different > 0, output


@pytest.mark.parametrize("problem", OWN, ids=[f"{d.op}-{i}" for i, d in enumerate(OWN)])
def test_a_batch_of_one_unit_holds_what_the_call_of_all_units_holds(problem):
    """In the reference, which computes each row alone."""
    subject = Subject(problem, "reference", "cpu")
    batches = harness_of(problem).batches(subject, SMALL, Random(4))
    every = list(range(SMALL.needles))
    descriptor, whole = batches.batch(every)
    subject.on(descriptor).run(whole)
    for unit in every:
        small, one = batches.batch([unit])
        subject.on(small).run(one)
        rows = batches.rows([unit])
        for name in (name for name, spec in operands_of(problem).items() if spec.written):
            table, own = batches.by_row(descriptor, name, whole), batches.by_row(small, name, one)
            assert same_bits(table[rows], own[: len(rows)]), (name, unit)


def test_rows_of_a_block_keep_the_scales_of_their_block():
    problem = next(d for d in OWN if d.op == "dequantize")
    batches = harness_of(problem).batches(Subject(problem, "reference", "cpu"), SMALL, Random(4))
    _, small = batches.batch([3, 1])
    assert same_bits(small.scale, batches.args.scale[[3, 1]])
    assert same_bits(small.x.view(torch.uint8), batches.args.x.view(torch.uint8)[batches.rows([3, 1])])
