"""NaN and infinities in every operand of folds, maps and sampling, and counts above the number of rows, in the emulator.

The bound of the SKU checks each result: NaN where the program computes NaN, and unchanged invalid rows. The kernels are those
of test_unaligned.py.
"""

import pytest

from opfacade.select.registry import examples
from opfacade.testing.bits import same_bits
from tests import emulator
from tests.emulator.test_unaligned import CHOSEN
from tests.support import poison
from tests.support.unaligned import in_a_child, worst

DRAWS = {
    one.op: one for one in examples() if one.op in ("adjust_logits", "sample", "topk", "verify_drafts") and poison.counted(one)
}
COUNTED = {name: problem for name, problem in CHOSEN.items() if poison.counted(problem)} | DRAWS
# Kernels that append pages or pack masks only move bits, so the values have no effect.
MOVES = ("paged_kv_append", "pack_mask")


def wrong(subject, problem, calls):
    """The names of calls whose result is wrong or that ended the process."""
    sku, found = subject.plan.sku, {}
    for name, args in calls:
        before = poison.left_alone(problem, name.partition("=")[0], args)
        found[name] = in_a_child(lambda: worst(problem, subject.run, sku, args) <= 1 and same(args, before))  # noqa: B023
    return [name for name, code in found.items() if code]


def same(args, before):
    return all(same_bits(getattr(args, operand), kept) for operand, kept in before.items())


@emulator.needed
@pytest.mark.parametrize("name", [name for name, problem in CHOSEN.items() if problem.op not in MOVES])
def test_specials_in_every_operand(name):
    problem = CHOSEN[name]
    with emulator.trapping_unaligned():
        assert wrong(emulator.subject(problem), problem, poison.specials(problem, 3)) == []


@emulator.needed
@pytest.mark.parametrize("name", COUNTED)
def test_counts_of_more_rows_than_there_are(name):
    problem = COUNTED[name]
    with emulator.trapping_unaligned():
        assert wrong(emulator.subject(problem), problem, poison.counts(problem, 3)) == []
