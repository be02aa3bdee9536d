"""Kernels and bindings run without a GPU and pass the same tests as on a GPU."""

import pytest
import torch

from opfacade.testing import matrix, problems
from opfacade.testing.families.attention import structural
from tests import emulator
from tests.support.assert_guarantee import hold

pytestmark = emulator.needed

# One kind for every split mode, element size and head size; the other kinds are heavy tests.
KINDS = [
    *("decode-auto", "decode-auto-f32", "decode-auto-fp8-head", "decode-even"),
    *("decode-cluster-d256-window-cap", "decode-cluster-fp8-d64-sinks", "decode-auto-wide-fp8-d256-cap"),
    *("decode-fixed-wide-group-block", "decode-fixed-fp8-d256-sinks", "decode-off-odd-window-cap"),
    *("ragged-auto-sinks", "prefill-off-fp8-head"),
    *("prefill-off-everything-varied", "ragged-off-documents-masked", "ragged-fixed-mask"),
    *("append-block-odd", "append-many-heads", "append-half-fp8-head", "append-interleaved-odd", "merge-bf16"),
]
# test_emulated_wgmma.py tests the uneven kinds
HEAVY = sorted(kind for kind in set(matrix.matrix()) - set(KINDS) if "uneven" not in kind)
OLD = {kind for kind in HEAVY if not kind.startswith("mla")}  # latent attention has a kernel only for sm_90a


@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.heavy) for kind in HEAVY)])
def test_a_kernel_keeps_its_guarantee(kind):
    hold(emulator.subject(matrix.matrix()[kind], arch="sm_90" if kind in OLD else "sm_90a"), seed=3)


@pytest.mark.parametrize("check", [structural.every_key_is_visited_once, structural.what_is_unused_does_not_matter])
@pytest.mark.parametrize("kind", ["decode-auto", pytest.param("decode-cluster-fp8-d64-sinks", marks=pytest.mark.heavy)])
def test_a_kernel_passes_the_exact_checks(kind, check):
    assert check(emulator.subject(matrix.matrix()[kind]), 3) == []


@pytest.mark.parametrize("kind", ["decode-auto", "decode-even", "decode-fixed-wide-group-block"])
def test_the_result_does_not_depend_on_the_content_of_the_workspace(kind):
    """The workspace, including its counters, contains zeros, ones, noise, and the values of the previous call."""
    subject = emulator.subject(matrix.matrix()[kind])
    size = subject.plan.workspace_size
    noise = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
    seen = []
    for workspace in (torch.zeros(size, dtype=torch.uint8), torch.full((size,), 255, dtype=torch.uint8), noise, noise):
        args = subject.args(4)
        args.o.fill_(float("nan"))
        subject.run(args, workspace)
        seen.append(args.o)
    assert all(torch.equal(seen[0], other) and not other.isnan().any() for other in seen)


@pytest.mark.heavy
@pytest.mark.parametrize("draw", [problems.random_descriptor, problems.special_descriptor])
@pytest.mark.parametrize("seed", range(12))
def test_random_decodes_keep_the_guarantee(draw, seed):
    hold(emulator.subject(draw("paged_decode", seed, tokens=800)), seed)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(12))
def test_random_appends_keep_the_guarantee(seed):
    hold(emulator.subject(problems.special_descriptor("paged_kv_append", seed, tokens=800)), seed)


def test_a_missing_wait_for_a_copy_is_detected():
    """Negative control: in a copy of the sources without the wait for a copy, the result is wrong."""
    wait, less = "cp_async_wait<C::kStages - 2>();", "cp_async_wait<C::kStages - 1>();"
    with emulator.edited("kernels/attention/decode/kernel.cuh", (wait, less)), pytest.raises(AssertionError):
        hold(emulator.subject(matrix.matrix()["decode-off-odd-window-cap"]), seed=3)
