"""Runs one problem with canaries around its memory, and checks its result against the SKU's bound."""

from opfacade.testing import guarded, numerics


def hold(subject, seed=1, lengths=None, interleaved=False, rows=8):
    """Raises AssertionError for a byte that was written elsewhere, or a result outside the bound. Returns (args, report)."""
    args = subject.args(seed, lengths, interleaved)
    before = numerics.snapshot(subject.descriptor, args)
    assert guarded.run(subject, args) == []
    report = numerics.check(subject.descriptor, args, subject.plan.sku, rows=rows, seed=seed, before=before)
    assert report.worst <= 1, f"seed {seed} {subject.descriptor!r}: {report.worst:.3g} of the bound at {report.where}"
    return args, report
