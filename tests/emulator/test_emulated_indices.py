"""Index tensors with entries out of bounds, in kernels and bindings in the emulator: see tests/support/wrong_indices.py."""

import pytest

from tests import emulator
from tests.support import unowned_rows as unowned
from tests.support import wrong_indices

pytestmark = emulator.needed
FAST = ("ragged-mask", "prefill", "decode-block", "mla", "block-copy", "csr-computed")
PREFILLS = [kind for kind in wrong_indices.ATTENTION if kind.startswith(("ragged", "prefill")) and kind != "ragged-fp8"]


def run(descriptor, args):
    emulator.subject(descriptor).run(args)


def run_mma(descriptor, args):
    emulator.subject(descriptor, arch="sm_90").run(args)


def some(kinds, fast=FAST):
    """Marks the cases that are not `fast` as heavy; together they take minutes."""
    return [kind if kind in fast else pytest.param(kind, marks=pytest.mark.heavy) for kind in kinds]


@pytest.mark.parametrize("kind", some(wrong_indices.ATTENTION))
def test_reads_are_clamped_and_writes_stay_inside(kind):
    wrong_indices.check_all_reads(kind, run)


@pytest.mark.parametrize("kind", ["decode", "decode-auto", "prefill", "mla"])
def test_a_request_without_pages_has_no_keys(kind):
    wrong_indices.check_empty_request(kind, run)


@pytest.mark.parametrize("kind", some(PREFILLS, ("ragged", "prefill-block")))
def test_the_mma_prefill_clamps_reads_too(kind):
    wrong_indices.check_all_reads(kind, run_mma)


@pytest.mark.parametrize("run", [run, run_mma])
def test_rows_before_the_first_entry_are_not_written(run):
    wrong_indices.check_rows_before_the_first_entry(run)


@pytest.mark.parametrize("kind", some(wrong_indices.APPENDS))
def test_rows_without_a_slot_are_not_appended(kind):
    wrong_indices.check_all_writes(kind, run)


@pytest.mark.parametrize("kind", some(unowned.PADDED, ("prefill-fixed", "append")))
def test_rows_that_no_request_owns_are_neither_read_nor_written(kind):
    unowned.check_padded(kind, run)


@pytest.mark.parametrize("kind", some(unowned.WINDOWED, ("prefill", "mla-block", "append-block")))
def test_pages_without_visible_keys_may_have_any_id(kind):
    unowned.check_hidden(kind, run)
