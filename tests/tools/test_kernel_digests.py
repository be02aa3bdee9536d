"""The digests of kernels do not depend on the compiler of this machine."""

from unittest.mock import patch

import pytest

from opfacade.core.descriptor import forget_specializations
from opfacade.tools import kernel_digests
from tests.support.assemblers import any_assembler


@pytest.mark.parametrize(
    "release", [(12, 9), *(pytest.param(release, marks=pytest.mark.heavy) for release in ((13, 0), (13, 5)))]
)
def test_an_old_assembler_changes_no_digest(release):
    with any_assembler():
        wanted = dict(kernel_digests.present.__wrapped__())
    assert any("wgmma" in sku for sku in wanted)
    forget_specializations()
    with patch("opfacade.backends.cuda.ptxas.release", return_value=release):
        found = dict(kernel_digests.present.__wrapped__())
    forget_specializations()
    assert found == wanted
