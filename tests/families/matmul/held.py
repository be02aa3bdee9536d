"""Shared by tests of matmul kernels: a problem on the emulated device satisfies both bounds of its guarantee, and a rule of
selection that tests change."""

from contextlib import contextmanager
from unittest.mock import patch

from opfacade.backends.cuda.matmul import direct
from opfacade.core.descriptor import forget_specializations
from opfacade.plan import forget_selections
from opfacade.testing import numerics
from tests import emulator


def forget():
    """Selections under a patched rule."""
    forget_specializations()
    forget_selections()


@contextmanager
def by_tiles():
    """All products of 16-bit types have tiles of wgmma, also those for which mma.sync is faster."""
    forget()
    with patch.object(direct, "choice", lambda problem, target: None):
        yield
    forget()


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
