"""The kernels that an H100 would get for calls with growing lengths; nothing runs."""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from opfacade import Target
from opfacade.plan import Plan

LONGEST = 4100
POWERS = [n for power in range(13) for n in (2**power - 1, 2**power, 2**power + 1) if n > 5]
HOPPER = Target.parse("sm_90a")


@contextmanager
def asking():
    """{op: ids of the kernels that calls select}."""
    found, kinds = {}, {}
    select = Plan.select.__func__

    def recorded(cls, descriptor, *rest, **named):
        # Sizes influence the choice, so each distinct descriptor is selected, once.
        if descriptor not in kinds:
            kinds[descriptor] = select(cls, descriptor, None, HOPPER).sku.id
        found.setdefault(descriptor.op, set()).add(kinds[descriptor])
        return SimpleNamespace(run=lambda args, workspace=None: None, can_implement=lambda args: True, workspace_size=0)

    with pytest.MonkeyPatch.context() as patched, patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        patched.setattr(Plan, "select", classmethod(recorded))
        yield found
