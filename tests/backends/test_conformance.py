"""Every candidate of every family fulfils its guarantee on EXAMPLES and random problems.

One call checks the error bound, unchanged inputs, complete outputs, and that nothing is written past an output or the
workspace.
"""

import itertools
from contextlib import suppress
from functools import cache

import pytest

from opfacade import Plan, Preference, Target
from opfacade.errors import UnsupportedError
from opfacade.plans._attention.paging import FP8
from opfacade.select.registry import BACKENDS, candidates_for, examples
from opfacade.testing import matrix, problems
from opfacade.testing.families.attention.problems import GROUPS, HEAD_DIMS, VARIANTS, fp8_descriptor, head_variants
from opfacade.testing.families.attention.requests import changed
from opfacade.testing.inputs import DrawnLengths
from opfacade.testing.subject import Subject
from tests.families.attention import test_prefill_cut
from tests.support.accepted import accepted
from tests.support.assemblers import any_assembler
from tests.support.assert_guarantee import hold
from tests.support.build_first import build_first

RANDOM_CPU = 12
RANDOM_GPU = dict.fromkeys(problems.OPS, 40) | {
    "paged_prefill": 160, "paged_decode": 160, "ragged_prefill": 80, "paged_kv_append": 60, "merge_states": 60,
    "mla_decode": 80, "sample": 80,
}  # fmt: skip
SPECIAL_GPU = 120
# One process has no peer; tests/distributed/test_link.py and tests/families/collective/test_sum_fold_kernel.py test them.
RANKS = ("nccl", "peers")
# Kernels with tiles accept all their problems first; test_cublaslt.py and test_cublaslt_gpu.py test these.
BEHIND = {"cublaslt_matmul", "cublaslt_matmul_lean"}
# Candidates that are selected only if others decline: their ops, and the other candidates.
RIVALS = {"mma_tile": (("paged_prefill", "ragged_prefill"), ("wgmma_tile",))}
RIVALS_GPU = 40
# Candidates that accept only special problems, and their ops.
NARROW, NARROW_OPS, NARROW_GPU = "wgmma_fp8_tile", ("paged_prefill", "ragged_prefill"), 80


def where(backend):
    return [pytest.param(backend, "cuda", marks=pytest.mark.gpu)] + ([(backend, "cpu")] if backend == "reference" else [])


PLACES = [place for backend in BACKENDS for place in where(backend)]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("backend", "device"), PLACES)
@pytest.mark.parametrize("descriptor", examples(), ids=lambda d: d.op)
def test_examples_keep_the_guarantee(descriptor, backend, device, interleaved):
    short = device == "cpu" and descriptor.op in ("paged_prefill", "paged_decode")
    lengths = DrawnLengths(kv=[19 * request % 41 for request in range(descriptor.batch_size)]) if short else None
    hold(
        accepted(Subject(descriptor, backend, device)),
        1,
        interleaved=interleaved,
        rows=6 if device == "cpu" else 24,
        lengths=lengths,
    )


@pytest.mark.parametrize("op", problems.OPS)
@pytest.mark.parametrize("seed", range(RANDOM_CPU))
def test_the_reference_keeps_its_guarantee_on_random_problems(op, seed):
    subject = Subject(problems.random_descriptor(op, seed, tokens=800), "reference", "cpu")
    hold(subject, seed, interleaved=seed % 3 == 0, rows=6)


@pytest.mark.parametrize("op", problems.SPECIAL)
@pytest.mark.parametrize("seed", range(RANDOM_CPU))
def test_the_reference_keeps_its_guarantee_on_special_problems(op, seed):
    subject = Subject(problems.special_descriptor(op, seed, tokens=800), "reference", "cpu")
    hold(accepted(subject), seed, interleaved=seed % 3 == 0, rows=6)


@pytest.mark.parametrize("op", NARROW_OPS)
@pytest.mark.parametrize("seed", range(RANDOM_CPU))
def test_the_reference_keeps_its_guarantee_on_fp8_problems(op, seed):
    subject = Subject(fp8_descriptor(op, seed, tokens=800), "reference", "cpu")
    hold(subject, seed, interleaved=seed % 3 == 0, rows=6)


VARIED = ("paged_prefill", "paged_decode", "ragged_prefill")


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("op", VARIED)
def test_the_reference_keeps_its_guarantee_for_every_group_and_size_of_a_head(op, special):
    found = head_variants(op, special, tokens=200)
    assert {(d.group_size, d.dim) for d in found} == {(g, d) for g in GROUPS for d in HEAD_DIMS}
    for seed, descriptor in enumerate(found):
        hold(Subject(descriptor, "reference", "cpu"), seed, rows=1)


@pytest.mark.parametrize("op", VARIED)
def test_random_problems_reach_every_group_size_and_form(op):
    plain = [problems.random_descriptor(op, seed) for seed in range(RANDOM_GPU[op])]
    assert {d.group_size for d in plain} >= set(GROUPS)
    assert {d.dim for d in plain} == set(HEAD_DIMS)
    special = [problems.special_descriptor(op, seed) for seed in range(SPECIAL_GPU)]
    assert {d.group_size for d in special} >= set(GROUPS)
    assert {d.sinks for d in special} == {False, True}
    if op == "ragged_prefill":
        assert {(192, 128), (64, 96), (128, 128)} <= {(d.dim, d.dim_vo) for d in special}
    if op != "paged_decode":
        assert {d.variant for d in special} == {None, *VARIANTS}
        assert {(d.custom_mask, d.variant is None) for d in special} == set(itertools.product((False, True), repeat=2))
    forms = {(d.kv_dtype, d.query_dtype, d.kv_scale) for d in special if hasattr(d, "kv_scale") and d.kv_dtype in FP8}
    assert len(forms) == (0 if op == "ragged_prefill" else 2 * 2 * 3)


def test_random_appends_reach_every_form():
    found = [problems.special_descriptor("paged_kv_append", seed) for seed in range(SPECIAL_GPU)]
    assert {d.rope for d in found} == {"none", "interleaved", "half"}
    assert {(d.row_dtype, d.kv_scale) for d in found if d.quantises} == set(
        itertools.product(("f16", "bf16", "f32"), ("none", "tensor", "head"))
    )
    assert any(d.rotated < d.paged_kv.head_dim for d in found if d.rotated)
    assert {d.rope_dtype for d in found if d.rotated} == {"f32", "bf16", "f16"}


@pytest.mark.parametrize("scale", [-0.3, 0.0])
@pytest.mark.parametrize(("backend", "device"), PLACES)
@pytest.mark.parametrize("kind", ["decode-auto", "decode-auto-f32", "prefill-off-causal"])
def test_an_unusual_scale_keeps_the_guarantee(kind, backend, device, scale):
    descriptor = changed(matrix.matrix()[kind], sm_scale=scale, allow_unusual_scale=True)
    hold(accepted(Subject(descriptor, backend, device)), seed=2, rows=8)


@cache
def _chosen(op):
    """The implementations that can run the EXAMPLES of an op."""
    found = set()
    with any_assembler():
        for example, arch, backend in itertools.product(examples(), ("sm_80", "sm_90a"), BACKENDS):
            if example.op == op:
                with suppress(UnsupportedError):
                    found.add(Plan.select(example, Preference(backend=backend), Target.parse(arch)).sku.impl)
    return found


def test_every_candidate_is_among_those_held():
    """This test fails if a new op, backend or implementation is not tested here."""
    assert {e.op for e in examples()} == set(problems.OPS) == set(RANDOM_GPU)
    for descriptor in examples():
        found = candidates_for(type(descriptor))
        impls = [c.impl for c in found if not c.config and c.impl not in RANKS]
        cut = {impl for op, impl in test_prefill_cut.subjects() if op == descriptor.op}
        assert {impl for impl in impls if impls.count(impl) > 1} == cut, "a second candidate needs a test of its own"
        assert set(impls) <= {*_chosen(descriptor.op), *RIVALS, NARROW, *BEHIND, *cut}, "each candidate needs a subject"
        assert {c.backend for c in found} <= {place.values[0] if hasattr(place, "values") else place[0] for place in PLACES}


@pytest.fixture(scope="session")
def _built_in_parallel():
    """Compiles all kernels of the random problems in parallel before the first one runs."""
    build_first(problems.random_descriptor(op, seed) for op, n in RANDOM_GPU.items() for seed in range(n))


@pytest.mark.gpu
@pytest.mark.usefixtures("_built_in_parallel")
@pytest.mark.parametrize(("op", "seed"), [(op, seed) for op, n in RANDOM_GPU.items() for seed in range(n)])
def test_cuda_keeps_its_guarantee_on_random_problems(op, seed):
    subject = accepted(Subject(problems.random_descriptor(op, seed), "cuda", "cuda"))
    _, report = hold(subject, seed, interleaved=seed % 3 == 0, rows=24)
    print(f"{op} seed={seed} worst={report.worst:.3f} tight={report.worst_tight:.3f} elements={report.elements}")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("impl", "op", "seed"), [(i, op, seed) for i, (ops, _) in RIVALS.items() for op in ops for seed in range(RIVALS_GPU)]
)
def test_a_candidate_behind_another_keeps_its_guarantee(impl, op, seed):
    subject = Subject(problems.random_descriptor(op, seed), "cuda", "cuda", forbid=RIVALS[impl][1])
    assert subject.plan.sku.impl == impl
    hold(subject, seed, interleaved=seed % 3 == 0, rows=24)


@pytest.fixture(scope="session")
def _fp8_built():
    build_first(fp8_descriptor(op, seed) for op in NARROW_OPS for seed in range(NARROW_GPU))


@pytest.mark.gpu
@pytest.mark.usefixtures("_fp8_built")
@pytest.mark.parametrize("op", NARROW_OPS)
@pytest.mark.parametrize("seed", range(NARROW_GPU))
def test_cuda_keeps_its_guarantee_on_fp8_problems(op, seed):
    subject = accepted(Subject(fp8_descriptor(op, seed), "cuda", "cuda"))
    assert subject.plan.sku.impl == NARROW
    _, report = hold(subject, seed, interleaved=seed % 3 == 0, rows=24)
    print(f"{op} fp8 seed={seed} worst={report.worst:.3f} tight={report.worst_tight:.3f} elements={report.elements}")


@pytest.fixture(scope="session")
def _special_built():
    build_first(problems.special_descriptor(op, seed) for op in problems.SPECIAL for seed in range(SPECIAL_GPU))


@pytest.fixture(scope="session")
def _variants_built():
    build_first(d for op in VARIED for special in (False, True) for d in head_variants(op, special))


@pytest.mark.gpu
@pytest.mark.usefixtures("_variants_built")
@pytest.mark.parametrize("at", range(len(GROUPS) * len(HEAD_DIMS)))
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("op", VARIED)
def test_cuda_keeps_its_guarantee_for_every_group_and_size_of_a_head(op, special, at):
    subject = accepted(Subject(head_variants(op, special)[at], "cuda", "cuda"))
    hold(subject, at, interleaved=at % 3 == 0, rows=8)


@pytest.mark.gpu
@pytest.mark.usefixtures("_special_built")
@pytest.mark.parametrize(("op", "seed"), [(op, seed) for op in problems.SPECIAL for seed in range(SPECIAL_GPU)])
def test_cuda_keeps_its_guarantee_on_special_problems(op, seed):
    subject = accepted(Subject(problems.special_descriptor(op, seed), "cuda", "cuda"))
    _, report = hold(subject, seed, interleaved=seed % 3 == 0, rows=24)
    print(f"{op} special seed={seed} worst={report.worst:.3f} tight={report.worst_tight:.3f} elements={report.elements}")
