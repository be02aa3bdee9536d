"""Algorithms of cuBLASLt that `tune` keeps: which ones, for which problems, and that only these claim repeatable bits."""

import json
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.library import matmul_algorithms as algorithms
from opfacade.core.preference import Require
from opfacade.errors import GuaranteeUnavailable, LibraryError
from opfacade.plan import forget_selections
from opfacade.select import hardware_stamp, measurements
from opfacade.select.decision import Measured, TuningRow, tuning_key
from opfacade.select.registry import configs_for
from opfacade.testing import inputs, numerics
from opfacade.tune.tune import eligible
from tests.families.matmul import cublaslt_here
from tests.families.matmul.test_cublaslt import FORMS, formula, made

SM_90A = Target.parse("sm_90a")
LIBRARY = Preference(backend="library")
CPU = torch.device("cpu")  # version of the fake library


@pytest.fixture
def library(tmp_path, monkeypatch):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    algorithms.kept.cache_clear()
    with cublaslt_here.here():
        yield tmp_path
    algorithms.kept.cache_clear()


def learn(problem):
    algorithms.learn(problem, SM_90A, 32 << 20, CPU)


def config(place=1):
    return next(one for one in configs_for(type(made())) if one.name == f"library/cublaslt_matmul[kept_{place}]")


def fits(problem, place=1):
    return not config(place).declines(problem, SM_90A)


def test_the_algorithms_that_keep_the_bound_are_kept_in_the_order_of_the_library(library):
    """The fake has two algorithms for f32: number 5 with a workspace, and number 6, which needs none."""
    problem = made(dtype="f32")
    assert not fits(problem)
    learn(problem)
    skus = [config(place).sku(problem, SM_90A) for place in (1, 2)]
    assert not fits(problem, 3)
    assert (
        [dict(sku.spec)["workspace"] for sku in skus]
        == [1 << 20, 0]
        == [config(place).workspace(problem, SM_90A) for place in (1, 2)]
    )
    assert len({dict(sku.spec)["algo"] for sku in skus}) == 2


@pytest.mark.parametrize("name", FORMS)
def test_a_kept_algorithm_runs_as_it_is_named(name, library):
    problem = FORMS[name]
    learn(problem)
    args, second = inputs.make_args(problem, 3), config(2)
    old, before = args.out.clone(), numerics.snapshot(problem, args)
    sku = second.sku(problem, SM_90A)
    second.launcher(problem, SM_90A, sku, True)(args, None)
    check, run = cublaslt_here.log()[-2:]
    assert check == "check 6"
    assert run.startswith("matmul algo 6 workspace 0 ")
    want = formula(problem, args, old)
    assert (args.out.double() - want).abs().max() <= 2.0**-7 * want.abs().max()
    assert numerics.check(problem, args, sku, before=before).worst <= 1


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_none_is_kept_that_may_round_a_sum_before_its_bias(dtype, library):
    learn(made(dtype=dtype, bias=True))
    assert not fits(made(dtype=dtype, bias=True))
    learn(made(dtype=dtype, bias=True, out_dtype="f32"))
    assert fits(made(dtype=dtype, bias=True, out_dtype="f32"))


def test_they_alone_repeat_their_bits_and_none_has_them_in_any_batch(library):
    problem = made(dtype="f32")
    learn(problem)
    kept, plain = config().sku(problem, SM_90A).precision_guarantee, Plan.select(problem, LIBRARY, SM_90A).precision_guarantee
    assert (kept.deterministic, kept.bit_stable_on_same_hardware, kept.batch_invariant) == (True, True, "none")
    assert not plain.deterministic
    assert kept.evidence
    assert kept.error_model == plain.error_model
    for sku in (config(1).sku(problem, SM_90A).id, config(2).sku(problem, SM_90A).id):
        pinned = Preference(backend="library", pin=sku, require="deterministic")
        assert Plan.select(problem, pinned, SM_90A).sku.id == sku
        with pytest.raises(GuaranteeUnavailable):
            Plan.select(problem, Preference(backend="library", pin=sku, require="batch_invariant"), SM_90A)


def test_they_are_for_the_sizes_device_and_version_that_they_were_kept_for(library):
    problem = made(dtype="f32")
    learn(problem)
    assert fits(problem)
    assert fits(problem.model_copy(update={"alpha": 0.5}).revalidated())  # any factor has the same algorithm
    for other in (made(rows=8, dtype="f32"), made(dtype="f32", weight_layout="kn"), made(dtype="f32", bias=True), made()):
        assert not fits(other)
    assert config().declines(problem, replace(SM_90A, sm_count=100))
    with cublaslt_here.installed("13.2.0.9"):
        algorithms.kept.cache_clear()
        assert not fits(problem)


@pytest.mark.parametrize("text", ["", "[", "{}", '[{"algo": "00", "workspace": 0}]', '[{"algo": 3}]', '[["a"]]'])
def test_a_file_that_is_not_as_it_was_written_has_none(text, library):
    problem = made(dtype="f32")
    learn(problem)
    (path,) = (library / "cublaslt").iterdir()
    path.write_text(text)
    algorithms.kept.cache_clear()
    assert not fits(problem)


def test_an_algorithm_that_the_library_does_not_know_is_an_error(library):
    """Nothing is written."""
    problem = made(dtype="f32")
    learn(problem)
    (path,) = (library / "cublaslt").iterdir()
    path.write_text(json.dumps([{"algo": "07" * 64, "workspace": 0}]))
    algorithms.kept.cache_clear()
    args = inputs.make_args(problem, 3)
    args.out.fill_(5)
    launch = config().launcher(problem, SM_90A, config().sku(problem, SM_90A), True)
    with pytest.raises(LibraryError, match="cublasLtMatmulAlgoCheck"):
        launch(args, None)
    assert (args.out == 5).all()


def test_operands_have_no_gaps_and_are_aligned(library):
    """As they were described to the library."""
    problem = made(dtype="f32", bias=True, batch=2)
    specs = config().operands(problem)
    assert {name for name, spec in specs.items() if spec.layout == "contiguous" and spec.alignment == 16} == set(specs)
    assert not any(spec.strides.expandable for spec in specs.values())


def test_tune_keeps_them_and_a_measurement_chooses_one(library, monkeypatch):
    problem = made(dtype="f32")
    (default, lean) = eligible(problem, LIBRARY, SM_90A)
    assert [one.candidate.learn is None for one in (default, lean)] == [False, True]
    learn(problem)
    names = [one.sku.id for one in eligible(problem, LIBRARY, SM_90A)]
    assert len(names) == 4
    times = [
        Measured(sku=sku, median_us=us, noise=0.01, samples=9, worst=0.1) for sku, us in zip(names, (9, 9, 9, 5), strict=True)
    ]
    where = {"key": tuning_key(problem), "hardware": hardware_stamp.hardware(SM_90A), "require": Require().canonical_json()}
    where |= {"toolchain": hardware_stamp.toolchain_of("library"), "date": "2026-11-28T00:00:00Z"}
    row = TuningRow(**where, incumbent=names[0], winner=names[3], gain=0.4, noise=0.01, measured=tuple(times))
    monkeypatch.setattr(measurements, "table", lambda: {(row.key, row.require): [row]})
    prefer = Preference(backend="library", autotune="use")
    assert Plan.select(problem, prefer, SM_90A).sku.id == names[3]
    near = made(rows=8, dtype="f32")  # of the same measurement, with nothing kept for it
    assert tuning_key(near) == tuning_key(problem)
    assert Plan.select(near, prefer, SM_90A).sku.id == names[0]
    old = row.model_copy(update={"toolchain": "opfacade 0.0.1, torch 1.0"})
    monkeypatch.setattr(measurements, "table", lambda: {(row.key, row.require): [old]})
    forget_selections()
    assert Plan.select(problem, prefer, SM_90A).sku.id == names[0]


def test_tune_asks_each_candidate_to_learn_before_it_measures():
    from opfacade.tune import tune as module

    asked, options = [], []
    problem = made(dtype="f32")

    class Option:
        class candidate:
            learn = staticmethod(lambda descriptor, target: asked.append(descriptor))

    with patch.object(module, "eligible", lambda *_: options.append(1) or (Option,)):
        module._learn([module.Work(problem)], None, SM_90A)
    assert asked == [problem]
