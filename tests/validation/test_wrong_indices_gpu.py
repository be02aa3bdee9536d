"""Index tensors that point out of bounds, on a GPU: see tests/support/wrong_indices.py."""

import pytest

from opfacade import Plan, Preference
from tests.support import wrong_indices

pytestmark = pytest.mark.gpu


def run(descriptor, args):
    Plan.select(descriptor, Preference(backend="cuda")).run(args)


def run_mma(descriptor, args):
    Plan.select(descriptor, Preference(backend="cuda", forbid=("wgmma_tile", "wgmma_fp8_tile"))).run(args)


@pytest.mark.parametrize("kind", wrong_indices.ATTENTION)
def test_reads_are_clamped_and_writes_stay_inside(kind):
    wrong_indices.check_all_reads(kind, run, "cuda")


@pytest.mark.parametrize("kind", [k for k in wrong_indices.ATTENTION if k[:6] in ("ragged", "prefil") and k != "ragged-fp8"])
def test_prefill_with_mma_clamps_too(kind):
    wrong_indices.check_all_reads(kind, run_mma, "cuda")


@pytest.mark.parametrize("run", [run, run_mma])
def test_rows_before_the_first_entry_are_not_written(run):
    wrong_indices.check_rows_before_the_first_entry(run, "cuda")


@pytest.mark.parametrize("kind", ["decode", "decode-auto", "prefill", "prefill-fp8", "mla", "mla-rows"])
def test_a_request_without_pages_has_no_keys(kind):
    wrong_indices.check_empty_request(kind, run, "cuda")


@pytest.mark.parametrize("kind", wrong_indices.APPENDS)
def test_rows_without_a_place_are_not_appended(kind):
    wrong_indices.check_all_writes(kind, run, "cuda")
