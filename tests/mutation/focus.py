"""The fast tests that run on a planted fault. OPFACADE_FOCUS_KINDS names kinds of the matrix, OPFACADE_FOCUS the device: "gpu",
"cpu" (the reference) or "emulated" (kernels without a GPU, tests/emulator; a few of the checks, because it is slow).

Not collected by itself: the same checks run over more problems in test_conformance, test_structural and test_determinism.
"""

import os
from contextlib import nullcontext
from unittest.mock import patch

import pytest

from opfacade.testing import determinism, inputs, matrix, prebuilt
from opfacade.testing.families.attention import metamorphic, structural
from opfacade.testing.families.attention.requests import changed
from opfacade.testing.subject import Subject, invariant
from tests.support.assert_guarantee import hold

FOCUS = os.environ.get("OPFACADE_FOCUS", "gpu")
EMULATED = FOCUS == "emulated"
pytestmark = [pytest.mark.gpu] if FOCUS == "gpu" else []  # otherwise the GPU is hidden from them
ROWS = 8 if EMULATED else 40  # kinds that are checked against the bound
WHERE = ("reference", "cpu") if FOCUS == "cpu" else ("cuda", "cuda")
# A fault of `mma_tile` would not run if asynchronous products are selected first.
FORBIDDEN = ("wgmma_tile", "wgmma_fp8_tile") if os.environ.get("OPFACADE_FOCUS_ARCH") == "sm_90" else ()
ALL = matrix.matrix()
KINDS = os.environ.get("OPFACADE_FOCUS_KINDS", "").split() or list(ALL)
EXACT = [structural.every_key_is_visited_once] if EMULATED else [*structural.CHECKS, *metamorphic.CHECKS]
ATTENTION = [kind for kind in KINDS if kind in matrix.attention()]


@pytest.fixture(scope="session", autouse=True)
def _built():
    if FOCUS == "gpu":
        prebuilt.build((ALL[kind] for kind in KINDS), FORBIDDEN)
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None) if EMULATED else nullcontext():
        yield


def subject_of(kind):
    if not EMULATED:
        return Subject(ALL[kind], *WHERE, forbid=FORBIDDEN)
    from tests import emulator

    return emulator.subject(ALL[kind], arch=os.environ["OPFACADE_FOCUS_ARCH"])


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("check", EXACT, ids=lambda check: check.__name__)
def test_exact(kind, check):
    for seed in (1,) if EMULATED else (1, 2):
        assert check(subject_of(kind), seed) == []


@pytest.mark.parametrize("kind", KINDS)
def test_bound(kind):
    for seed in range(1 if EMULATED else 4):
        hold(subject_of(kind), seed, rows=ROWS)


@pytest.mark.parametrize("kind", ATTENTION)
def test_bound_of_short_requests(kind):
    """The shorter the lengths, the larger is the effect of one key, one scale or one log: lengths around every tile and page
    edge.
    """
    descriptor = ALL[kind]
    batch, rows = descriptor.batch_size, getattr(descriptor, "total_num_rows", None)
    kv = [(1, 15, 17, 63, 65, 100)[r % 6] for r in range(batch)]
    q = None if rows is None else [rows // batch] * (batch - 1) + [rows - rows // batch * (batch - 1)]
    if hasattr(descriptor, "total_kv_rows") and sum(kv) > descriptor.total_kv_rows:
        pytest.skip("too few rows")
    hold(subject_of(kind), 3, inputs.DrawnLengths(q=q, kv=kv), rows=ROWS)


@pytest.mark.parametrize("kind", ATTENTION)
def test_bound_where_maxima_move(kind):
    """Scores so far apart that the base of a row moves from tile to tile; with the usual scale it stays after the first."""
    hold(subject_of(kind).on(changed(ALL[kind], sm_scale=4.0)), 2, rows=ROWS)


@pytest.mark.skipif(EMULATED, reason="the emulator has one order")
@pytest.mark.parametrize("kind", KINDS)
def test_runs_repeat(kind):
    shown = determinism.run_to_run(subject_of(kind), 200 if WHERE[1] == "cuda" else 5, seed=1)
    assert shown.different == 0, shown.first


@pytest.mark.skipif(EMULATED, reason="too slow there")
@pytest.mark.parametrize("kind", ATTENTION)
def test_invariance(kind):
    subject = subject_of(kind)
    if invariant(subject):
        shown = determinism.batch_invariance(subject, determinism.QUICK, seed=1)
        assert shown.different == 0, shown.first
