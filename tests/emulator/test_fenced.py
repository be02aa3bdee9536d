"""No byte outside an operand is read or written: each operand is placed at the end, then at the beginning of
accessible memory."""

from dataclasses import replace

import pytest
import torch

from opfacade.core.descriptor import operands_of
from opfacade.plans._attention.paging import PagedKvCacheDescriptor
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from tests import emulator
from tests.emulator.test_unaligned import CHOSEN
from tests.support import unaligned
from tests.support.fenced import fenced

pytestmark = emulator.needed


def append(**way):
    """An append of eleven rows, which fill neither the CTAs of four warps nor a page."""
    cache = PagedKvCacheDescriptor(num_total_pages=20, page_size=4, num_kv_heads=3, head_dim=64, dtype="bf16", layout="NHD")
    return PagedKvAppendDescriptor(batch_size=3, total_num_rows=11, paged_kv=cache, **way)


# The kernels that take longest to compile.
HEAVY = ("gated_activation-loops@1", "gated_activation-rows@1", "gated_activation-scaled@1")
HEAVY += tuple(name for name in CHOSEN if name.startswith("grouped_matmul"))
PROBLEMS = CHOSEN | {"append of odd rows": append(), "append of turned rows": append(rope="half")}


def between_fences(args, problem, behind):
    tensors = {name: getattr(args, name) for name in operands_of(problem)}
    return replace(args, **{name: fenced(x, behind) for name, x in tensors.items() if torch.is_tensor(x) and x.is_contiguous()})


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.heavy if name in HEAVY else ()) for name in PROBLEMS])
def test_no_byte_outside_the_operands_is_accessed(name):
    subject = emulator.subject(PROBLEMS[name])
    for behind in (True, False):
        call = between_fences(subject.args(3), PROBLEMS[name], behind)
        assert unaligned.in_a_child(lambda: subject.run(call) is None) == 0  # noqa: B023
