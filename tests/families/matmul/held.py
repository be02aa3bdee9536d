"""The check that tests of matmul kernels share: a problem on the emulated device satisfies both bounds of its guarantee."""

from opfacade.testing import numerics
from tests import emulator


def held(problem, args, impl="wgmma_tile", model=None):
    """impl: the kernel that must be selected; model: the error model that it must state, or None."""
    subject = emulator.subject(problem)
    assert subject.plan.sku.impl == impl
    assert model in (None, subject.plan.sku.precision_guarantee.error_model.id)
    before = numerics.snapshot(problem, args)
    subject.run(args)
    report = numerics.check(problem, args, subject.plan.sku, before=before)
    assert report.worst <= 1, report
    assert report.worst_tight <= 1, report
