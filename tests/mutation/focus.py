"""The fast tests that a planted fault meets. OPFACADE_FOCUS_KINDS names kinds of the matrix, OPFACADE_FOCUS the device.

Not collected by itself: the same checks run over more problems in test_conformance, test_structural and test_determinism.
"""

import os

import pytest

from opfacade.testing import determinism, guarded, inputs, matrix, metamorphic, numerics, prebuilt, structural
from opfacade.testing.subject import Subject, invariant

WHERE = ("reference", "cpu") if os.environ.get("OPFACADE_FOCUS") == "cpu" else ("cuda", "cuda")
ALL = matrix.matrix()
KINDS = os.environ.get("OPFACADE_FOCUS_KINDS", "").split() or list(ALL)
ATTENTION = [kind for kind in KINDS if kind in matrix.attention()]


@pytest.fixture(scope="session", autouse=True)
def _built():
    if WHERE[0] == "cuda":
        prebuilt.build(ALL[kind] for kind in KINDS)


def hold(subject, seed, lengths=None):
    args = subject.args(seed, lengths)
    before = (args.k_data.clone(), args.v_data.clone()) if subject.descriptor.op == "paged_kv_append" else None
    assert guarded.run(subject, args) == []
    report = numerics.check(subject.descriptor, args, subject.plan.sku, rows=40, seed=seed, before=before)
    assert report.worst <= 1, report


@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("check", [*structural.CHECKS, *metamorphic.CHECKS], ids=lambda check: check.__name__)
def test_exact(kind, check):
    for seed in (1, 2):
        assert check(Subject(ALL[kind], *WHERE), seed) == []


@pytest.mark.parametrize("kind", KINDS)
def test_bound(kind):
    for seed in range(4):
        hold(Subject(ALL[kind], *WHERE), seed)


@pytest.mark.parametrize("kind", ATTENTION)
def test_bound_of_short_requests(kind):
    """The shorter, the larger a fault in one key, one scale or one log: lengths around every tile and page edge."""
    descriptor = ALL[kind]
    batch, rows = descriptor.batch_size, getattr(descriptor, "total_num_rows", None)
    kv = [(1, 15, 17, 63, 65, 100)[r % 6] for r in range(batch)]
    q = None if rows is None else [rows // batch] * (batch - 1) + [rows - rows // batch * (batch - 1)]
    if hasattr(descriptor, "total_kv_rows") and sum(kv) > descriptor.total_kv_rows:
        pytest.skip("too few rows")
    hold(Subject(descriptor, *WHERE), 3, inputs.Lengths(q=q, kv=kv))


@pytest.mark.parametrize("kind", KINDS)
def test_runs_repeat(kind):
    shown = determinism.run_to_run(Subject(ALL[kind], *WHERE), 200 if WHERE[1] == "cuda" else 5, seed=1)
    assert shown.different == 0, shown.first


@pytest.mark.parametrize("kind", ATTENTION)
def test_invariance(kind):
    subject = Subject(ALL[kind], *WHERE)
    if invariant(subject):
        shown = determinism.batch_invariance(subject, determinism.QUICK, seed=1)
        assert shown.different == 0, shown.first
