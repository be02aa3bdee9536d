"""Kernels in the emulator that read inputs with stride 0 and slices of wider block tables."""

from unittest.mock import patch

import pytest

from opfacade.testing import matrix, numerics
from tests import emulator
from tests.emulator.test_emulated_wgmma import KINDS as WGMMA
from tests.support.operand_forms import expanded, sliced

pytestmark = emulator.needed

HEAVY = (
    *("ragged-auto-sinks", "decode-auto", "append-block-odd", "decode-fixed-odd-window-block", "append-many-heads"),
    *("append-interleaved-odd", "mla-fixed-wide-block"),
)
OF_MATRIX = [
    *("prefill-off-everything-varied", "append-half-fp8-head"),
    *(pytest.param(kind, marks=pytest.mark.heavy) for kind in HEAVY),
]


def hold(subject):
    args = subject.args(3)
    before = (args.k_data.clone(), args.v_data.clone()) if subject.descriptor.op == "paged_kv_append" else None
    call, names = expanded(subject.descriptor, args)
    call = sliced(call) if getattr(call, "block_table", None) is not None else call
    subject.run(call)
    report = numerics.check(subject.descriptor, call, subject.plan.sku, rows=8, before=before)
    assert report.worst <= 1, report
    return names


@pytest.mark.parametrize("kind", OF_MATRIX)
def test_a_kernel_reads_an_input_with_a_head_stride_of_zero(kind):
    hold(emulator.subject(matrix.matrix()[kind]))


@pytest.mark.parametrize(
    "kind", ["ragged", pytest.param("page-1", marks=pytest.mark.heavy), pytest.param("fp8", marks=pytest.mark.heavy)]
)
def test_the_wgmma_prefill_reads_an_input_with_a_head_stride_of_zero(kind):
    """TMA does not support stride 0, so threads load."""
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        subject = emulator.subject(WGMMA[kind])
        assert subject.plan.sku.impl == "wgmma_tile"
        names = hold(subject)
    assert len(names) == 3
