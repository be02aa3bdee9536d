"""Bits that must not change: between runs, between processes, and per request in any batch. The harness can fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.select.selection import survey
from opfacade.testing import determinism, matrix
from opfacade.testing.determinism import QUICK, Campaign
from opfacade.testing.families.attention.requests import changed, same_bits
from opfacade.testing.subject import Subject, invariant
from tests.support.accepted import accepted
from tests.support.assemblers import any_assembler
from tests.support.build_first import build_first
from tests.support.faulty_subjects import RUNS, Faulty

ROOT = Path(__file__).parents[2]
ALL = matrix.matrix()
DECODE = changed(ALL["decode-fixed-odd-window-block"], window_left=-1)
RUNS_GPU, RUNS_HEAVY, PROCESSES = 200, 1000, 20


def on_cpu(fault):
    return Faulty(DECODE, "reference", "cpu", fault)


@pytest.mark.usefixtures("one_thread")  # then products in torch have one order, though the reference guarantees no bits
@pytest.mark.parametrize("kind", ALL)
def test_the_harness_runs_every_kind_on_the_reference(kind):
    shown = determinism.run_to_run(Subject(ALL[kind], "reference", "cpu"), runs=4, seed=1)
    assert (shown.runs, shown.different) == (4, 0)


def test_a_run_that_differs_is_seen():
    RUNS.clear()
    shown = determinism.run_to_run(on_cpu("counts_runs"), runs=20, seed=1)
    assert 0 < shown.different < 20
    assert "differ" in shown.first


@pytest.mark.usefixtures("one_thread")  # then products in torch have one order, though the reference guarantees no bits
@pytest.mark.parametrize("fault", ["sees_the_batch", "sees_the_neighbour"])
def test_a_request_that_sees_its_batch_is_seen(fault):
    assert determinism.batch_invariance(on_cpu("right"), QUICK, 1).different == 0
    shown = determinism.batch_invariance(on_cpu(fault), QUICK, 1)
    assert shown.different > 0
    assert str(shown.runs) in shown.first


@pytest.mark.parametrize("kind", ["decode-off-odd-window-cap", "prefill-off-causal", "ragged-fixed-window"])
def test_a_campaign_compares_every_needle_often_enough(kind):
    shown = determinism.batch_invariance(Subject(ALL[kind], "reference", "cpu"), QUICK, 2)
    assert shown.compared >= QUICK.needles * QUICK.compositions


def test_a_process_prints_a_fingerprint_of_every_kind():
    """Which bits the reference writes depends on torch's number of threads, so two processes are not compared."""
    assert set(fingerprints("reference", "cpu")) == set(ALL)


def fingerprints(backend, device):
    command = [sys.executable, "-m", "opfacade.testing.fingerprint", "--backend", backend, "--device", device]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def heavy(request):
    return request.config.getoption("--heavy")


@pytest.fixture(scope="session")
def _built():
    build_first(ALL.values())


@pytest.mark.gpu
@pytest.mark.usefixtures("_built")
@pytest.mark.parametrize("kind", ALL)
def test_runs_repeat_bitwise_on_a_busy_gpu(kind, heavy):
    """Hundreds of runs: other addresses, streams, garbage in workspace and outputs, a second kernel beside it."""
    subject = accepted(Subject(ALL[kind], "cuda", "cuda"))
    shown = determinism.run_to_run(subject, RUNS_HEAVY if heavy else RUNS_GPU, seed=7)
    print(f"run_to_run {kind} runs={shown.runs} different={shown.different}")
    assert shown.different == 0, shown.first


@pytest.mark.gpu
@pytest.mark.heavy
@pytest.mark.usefixtures("_built")
def test_processes_repeat_bitwise():
    """New processes with another memory layout write the same bytes."""
    first = fingerprints("cuda", "cuda")
    for _ in range(PROCESSES - 1):
        assert fingerprints("cuda", "cuda") == first
    print(f"processes runs={PROCESSES} kinds={len(first)} different=0")


# Requirements of a class of SKU so that partial results of a fixed split, which are as many as the bound allows, fit memory.
_SHORT = Campaign(largest=64, longest=8192)
# Programs and samples: their examples that are not exact.
PROGRAMS = {
    "map": range(4), "fold": (0, 1, 2, 3, 5, 7, 8, 11, 12, 13, 14), "gated_activation": (0, 1, 2, 3, 6, 7, 8, 9),
    "norm": (*range(9), 10),
    "softmax": range(5), "sample": range(5), "probabilities": range(3), "adjust_logits": (1,),
    "verify_drafts": range(2), "qkv_prepare": range(4),
    "route": (0, 3), "moe_gather": (1,), "moe_combine": range(3), "fused_moe": (0, 1, 2, 3, 5, *range(7, 12)),
}  # fmt: skip
# Rows have one length and no pages: only a row's place and the number of rows differ.
ROWS, FEW = Campaign(), Campaign(needles=50, compositions=16)
CAMPAIGNS = {
    "decode-fixed-wide-group-block": Campaign(),
    "decode-off-odd-window-cap": Campaign(longest=8192),
    "decode-fixed-odd-window-block": Campaign(),
    "decode-fixed-f32": Campaign(needles=100, longest=8192),
    "decode-fixed-fp8-d256-sinks": Campaign(longest=8192),
    "mla-fixed-wide-block": _SHORT,
    "mla-off-odd-window-cap-sinks": Campaign(longest=8192),
    "prefill-off-causal": Campaign(),
    "prefill-fixed-odd-window-cap-block": _SHORT,
    "prefill-off-sinks": Campaign(longest=8192),
    "prefill-fixed-odd-sinks": _SHORT,
    "prefill-off-fp8-head": Campaign(longest=8192),
    "prefill-fixed-fp8-d256-sinks-cap": _SHORT,
    "prefill-off-fp8-products": Campaign(longest=8192),
    "prefill-off-fp8-products-full": _SHORT,
    "prefill-fixed-fp8-products-window-sinks": _SHORT,
    "prefill-off-everything-varied": Campaign(longest=8192),
    "prefill-fixed-documents-d256": _SHORT,
    "ragged-off-causal": Campaign(longest=8192),
    "ragged-off-documents-masked": Campaign(longest=8192),
    "ragged-fixed-mask": _SHORT,
    "ragged-fixed-window": _SHORT,
    "ragged-off-uneven": Campaign(longest=8192),
    "ragged-fixed-uneven-window-cap-sinks": _SHORT,
    "ragged-off-fp8-products-heads": Campaign(longest=8192),
    **{f"{op}-{i}": ROWS for op, places in PROGRAMS.items() for i in places},
}
CHUNKS = {
    "mla-fixed-wide-block": 512,
    "prefill-fixed-odd-window-cap-block": 1000,
    "prefill-fixed-odd-sinks": 1000,
    "prefill-fixed-documents-d256": 1000,
    "ragged-fixed-mask": 1000,
    "prefill-fixed-fp8-d256-sinks-cap": 1000,
    "prefill-fixed-fp8-products-window-sinks": 1000,
    "ragged-fixed-window": 768,
    "ragged-fixed-uneven-window-cap-sinks": 1000,
}


def test_every_class_that_claims_invariance_is_tried():
    with any_assembler():
        # test_matmul_gpu.py has rows of products; most of these have no kernel
        found = {
            k: survey(d, Preference(backend="cuda"), Target.parse("sm_90a")) for k, d in ALL.items() if d.category != "matmul"
        }
        tried = {k: ALL[k] for k, options in found.items() if any(not option.reasons for option in options)}
        plans = {k: Plan.select(d, Preference(backend="cuda"), Target.parse("sm_90a")) for k, d in tried.items()}
    claims = {k: p.precision_guarantee for k, p in plans.items() if p.precision_guarantee.batch_invariant == "composition"}
    # Bits of an exact result follow from its inputs alone: the conformance test checks them.
    assert {k for k, claim in claims.items() if claim.error_model.id != "exact"} == set(CAMPAIGNS)


def kind_of(kind):
    return changed(ALL[kind], kv_split=CHUNKS[kind]) if kind in CHUNKS else ALL[kind]


@pytest.mark.gpu
@pytest.mark.usefixtures("_built")
@pytest.mark.parametrize("kind", CAMPAIGNS)
def test_a_request_keeps_its_bits_in_any_batch(kind, heavy):
    """Requests in many batches of 1 to 256: empty, doubled and NaN neighbours, any position, shuffled pages."""
    subject = Subject(kind_of(kind), "cuda", "cuda")
    assert invariant(subject)
    campaign = FEW if CAMPAIGNS[kind] is ROWS and not heavy else CAMPAIGNS[kind]
    shown = determinism.batch_invariance(subject, campaign, seed=11)
    print(f"batch_invariance {kind} compared={shown.compared} runs={shown.runs} different={shown.different}")
    assert shown.different == 0, shown.first


@pytest.mark.gpu
@pytest.mark.usefixtures("_built")
def test_the_harness_catches_a_sku_that_sees_its_batch():
    """Negative control: a decode that shares the device over the whole batch does not claim invariance, and has none.

    The test uses f32, for which the split does not depend on bounds: in 16 bits, smaller bounds may choose chunks, which are
    invariant.
    """
    subject = Subject(ALL["decode-auto-f32"], "cuda", "cuda")
    assert not invariant(subject)
    shown = determinism.batch_invariance(subject, Campaign(needles=20, compositions=8, largest=64, longest=8192), seed=11)
    print(f"negative_control decode-auto-f32 runs={shown.runs} different={shown.different}")
    assert shown.different > 0


@pytest.mark.gpu
@pytest.mark.usefixtures("_built")
@pytest.mark.parametrize("kind", ["decode-fixed-odd-window-block", "prefill-fixed-odd-window-cap-block"])
def test_the_size_of_a_fixed_split_reaches_the_kernel(kind):
    """Negative control: two chunks sum in different orders, so some bit differs."""
    subjects = [Subject(changed(ALL[kind], kv_split=split), "cuda", "cuda") for split in (128, 320)]
    args = [subject.args(4) for subject in subjects]
    for subject, call in zip(subjects, args, strict=True):
        subject.run(call)
    assert torch.equal(args[0].q, args[1].q)
    assert not (same_bits(args[0].o, args[1].o) and same_bits(args[0].lse, args[1].lse))
