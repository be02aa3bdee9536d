"""The toy's kernel, declared as data in its own files: selected, refused, emulated, verified and fuzzed; compiled if nvcc is
installed."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target, explain, jit
from opfacade.testing import determinism, inputs, numerics, problems
from opfacade.testing.bits import same_bits
from opfacade.testing.subject import Subject
from opfacade.tools import verify
from tests import emulator
from tests.families.mount import mounted
from tests.families.test_toy_operands import FORMS, strided
from tests.support.assert_guarantee import hold

SM_90A = Target.parse("sm_90a")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The sources of the package together with those of the toy."""
    place = tmp_path_factory.mktemp("toy") / "root"
    for folder in ("csrc", "kernels"):
        shutil.copytree(emulator.ROOT / folder, place / folder)
        shutil.copytree(Path(__file__).parent / "toy" / folder, place / folder, dirs_exist_ok=True)
    return place


@pytest.fixture
def toy(root, monkeypatch):
    monkeypatch.setenv("OPFACADE_SOURCE_ROOT", str(root))
    jit.forget()
    with mounted("toy") as plans, patch.object(emulator, "build", partial(_build, emulator.build, root)):
        yield plans
    jit.forget()


def _build(plain, root, spec):
    return plain(spec, (emulator.ROOT / "tests/emulator", root))


@pytest.fixture(params=FORMS)
def problem(toy, request):
    return toy.PickDescriptor(rows=9, width=20, entries=5, dtype="f16", **FORMS[request.param])


def test_the_kernel_is_selected_if_supported_and_otherwise_declines_with_a_field(toy):
    descriptor = toy.PickDescriptor(rows=9, width=20, entries=5, dtype="bf16", num_valid=True)
    plan = Plan.select(descriptor, Preference(backend="cuda"), SM_90A)
    assert plan.sku.id.startswith("toy/pick/cuda/sm_90a/elements@1/x=bf16/strided/num_valid=true/g2.")
    assert plan.jit_spec.template == "toy/pick"
    told = str(explain(toy.PickDescriptor(rows=9, width=20, entries=5, dtype="f8_e4m3"), target=SM_90A))
    assert "dtype=f8_e4m3 (allowed: f16, bf16, f32). [OPF-S002]" in told


@emulator.needed
def test_it_keeps_its_guarantee(problem):
    subject = emulator.subject(problem)
    hold(subject, 0)
    hold(subject, 1, interleaved=True)
    shown = determinism.batch_invariance(subject, determinism.Campaign(3, 2, 4, 1), seed=1)
    assert shown.different == 0 < shown.compared


@emulator.needed
def test_any_strides_give_the_bits_of_contiguous_operands(problem):
    subject, args = emulator.subject(problem), inputs.make_args(problem, seed=3, lengths=inputs.DrawnLengths(valid=6))
    args = replace(args, table=args.table[:1].expand(args.table.shape).contiguous())
    other = strided(args)
    assert other.table.stride(0) == 0
    assert other.x.stride(1) != 1
    subject.run(args), subject.run(other)
    first, second = ((a.x if problem.in_place else a.out) for a in (args, other))
    assert same_bits(first, second)
    assert not bool(first[:6].isnan().any())


@emulator.needed
def test_an_index_or_count_out_of_range_accesses_nothing_outside_the_tensors(toy):
    descriptor = toy.PickDescriptor(rows=9, width=20, entries=5, dtype="f16", num_valid=True)
    subject, args = emulator.subject(descriptor), inputs.make_args(descriptor, seed=3, lengths=inputs.DrawnLengths(valid=9))
    right = replace(args, index=args.index.clone(), out=args.out.clone())
    args.index[4], right.index[4] = 2**31 - 1, 0
    subject.run(args), subject.run(right)
    assert same_bits(args.out, right.out)
    for count in (-1, 10, 2**31 - 1):
        args.num_valid.fill_(count)
        args.out.fill_(7)
        subject.run(args)
        assert bool((args.out == 7).all())


@emulator.needed
def test_random_problems_keep_the_bound(toy):
    for seed in range(5):
        descriptor = problems.random_descriptor("pick", seed, tokens=40)
        subject = emulator.subject(descriptor)
        args = subject.args(seed, interleaved=seed % 2 == 1)
        before = numerics.snapshot(descriptor, args)
        subject.run(args)
        assert numerics.check(descriptor, args, subject.plan.sku, before=before).worst <= 1


def test_the_kernel_compiles(toy):
    """nvcc and the host compiler build the kernel and its binding; nothing is loaded."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to build a binding with")
    descriptor = toy.PickDescriptor(rows=9, width=20, entries=5, dtype="f16", **FORMS["both"])
    plan = Plan.select(descriptor, Preference(backend="cuda"), SM_90A)
    plan.compile()
    assert plan.cache_state == "shared"


@pytest.mark.gpu
def test_the_kernel_keeps_its_guarantee_on_a_gpu(problem, monkeypatch):
    subject = Subject(problem, "cuda", "cuda")
    for seed in range(3):
        hold(subject, seed)
        hold(subject, seed, interleaved=True)
    args = strided(subject.args(3))
    args = replace(args, x=args.x.cuda(), gain=args.gain.cuda())
    assert subject.plan.can_implement(args)
    assert verify.verify(quick=True, backend="cuda", say=lambda text: None, descriptors=[problem])["ok"]
    torch.cuda.synchronize()
