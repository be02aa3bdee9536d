"""The reference computes blocks of rows; for any block size, each block uses its own queries, positions, masks and outputs."""

import math

import pytest
import torch

from opfacade.backends.reference.attention import softmax
from opfacade.testing import numerics
from opfacade.testing.inputs import DrawnLengths
from opfacade.testing.matrix import matrix
from opfacade.testing.subject import Subject

KINDS = (
    "prefill-off-causal", "prefill-fixed-odd-window-cap-block", "prefill-off-everything-varied", "prefill-off-fp8-products",
    "ragged-fixed-mask", "ragged-off-documents-masked", "ragged-fixed-uneven-window-cap-sinks",
)  # fmt: skip


def lengths_of(descriptor):
    """Lengths that use every row; some requests have fewer keys than rows."""
    rows, batch = descriptor.total_num_rows, descriptor.batch_size
    q = [rows // batch] * (batch - 1) + [rows - rows // batch * (batch - 1)]
    most = getattr(descriptor, "total_kv_rows", 10**9) // batch
    return DrawnLengths(q=q, kv=[min(most, n + 9) for n in q])


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_any_size_of_row_blocks_gives_the_right_result(monkeypatch, kind, rows):
    subject = Subject(matrix()[kind], "reference", "cpu")
    lengths = lengths_of(subject.descriptor)
    args = subject.args(1, lengths)
    monkeypatch.setattr(softmax, "_SCORE_BUDGET", rows * subject.descriptor.num_qo_heads * max(lengths.kv))
    blocks = []
    product = softmax._softmax_product
    monkeypatch.setattr(softmax, "_softmax_product", lambda q, *more: (blocks.append(q.shape[1]), product(q, *more))[1])
    subject.run(args)
    assert len(blocks) > subject.descriptor.batch_size
    assert numerics.check(subject.descriptor, args, subject.plan.sku).worst <= 1


def test_a_sink_far_above_all_scores_takes_all_the_weight():
    kind = matrix()["prefill-off-sinks"]
    subject = Subject(kind, "reference", "cpu")
    args = subject.args(1, lengths_of(kind))
    args.sinks.fill_(200.0)
    subject.run(args)
    assert torch.allclose(args.lse, torch.full_like(args.lse, 200.0))
    assert float(args.o.float().abs().max()) < math.exp(-100)
