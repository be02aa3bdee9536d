"""10,000 random problems and calls per run: a correct result or an OpfacadeError, never another exception; select is
repeatable.
"""

import json
import random
import warnings

import pytest
import torch

from opfacade import Plan, Preference, Target, load_descriptor
from opfacade import plan as plans
from opfacade.core.descriptor import inout
from opfacade.errors import IndexDataError, OpfacadeError
from opfacade.select.registry import descriptor_types
from opfacade.testing import inputs, numerics, problems
from opfacade.validation.rules import tables_of
from tests.support.fuzzing import VALUES, as_text, draw, meta_args, mutated_fields, mutated_text, small, spoiled_args
from tests.support.index_corruption import corrupt

TARGETS = (Target.cpu(), Target.parse("sm_90a"), Target.parse("sm_80"), Target.parse("sm_75"))
REFERENCE = Preference(backend="reference")
CHUNKS = 10


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # falling back to the reference is a warning, and ordinary here
        yield


def outcome(call, *args):
    """The outcome of a call: (its value, None) or (None, the error). Any other exception is the fuzzer's find."""
    try:
        return call(*args), None
    except OpfacadeError as error:
        return None, error


def seeded(chunk, size, salt):
    """Seeds of a chunk; a failing seed is named, and repeats the failure alone."""
    for seed in range(chunk * size, (chunk + 1) * size):
        try:
            yield random.Random(f"{salt} {seed}")
        except GeneratorExit:
            print(f"failed: random.Random({f'{salt} {seed}'!r})")
            raise


def parsed(rng, descriptor):
    """A descriptor, rebuilt from its fields or its text, mutated or not."""
    fields = mutated_fields(rng, descriptor.model_dump(mode="json"), rng.choice((0, 0, 1, 1, 3)))
    form = rng.random()
    if form < 0.4:
        return type(descriptor).model_validate(fields)
    if form < 0.7:
        return load_descriptor(as_text(fields))
    if form < 0.9:
        return load_descriptor(mutated_text(rng, as_text(fields)))
    other = rng.choice(list(descriptor_types().values()))
    return other.model_validate(fields)


def selected(descriptor, prefer, target):
    plan = Plan.select(descriptor, prefer, target)
    plans._selected.clear()
    again = Plan.select(descriptor, prefer, target)
    assert (plan.sku, plan.workspace_size) == (again.sku, again.workspace_size)
    assert plan.workspace_size >= 0
    return plan


def check_error(error):
    text = str(error)
    assert error.code.startswith("OPF-"), repr(error)
    assert error.code in text
    assert len(text) < 2000


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_descriptors(chunk):
    made = refused = 0
    for rng in seeded(chunk, 550, "descriptor"):
        descriptor, error = outcome(parsed, rng, draw(rng))
        if error is not None:
            refused += 1
            check_error(error)
            continue
        made += 1
        assert load_descriptor(descriptor.model_dump_json()) == descriptor
        assert json.loads(descriptor.canonical_json())["op"] == descriptor.op
        _, error = outcome(selected, descriptor, None, rng.choice(TARGETS))
        if error is not None:
            check_error(error)
    assert made > 100
    assert refused > 100


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_calls_without_memory(chunk):
    sound = 0
    for rng in seeded(chunk, 390, "call"):
        descriptor = draw(rng)
        prefer = REFERENCE if rng.random() < 0.5 else None
        plan = Plan.select(descriptor, prefer, rng.choice(TARGETS[:3]))
        args = spoiled_args(rng, meta_args(descriptor), rng.choice((0, 1, 1, 2, 5)))
        if rng.random() < 0.03:
            args = rng.choice((*VALUES, meta_args(draw(rng))))
        workspace = rng.choice((None, None, torch.empty(plan.workspace_size, dtype=torch.uint8, device="meta"), 7))
        verdict = plan.can_implement(args, workspace)
        assert plan.can_implement(args, workspace) == verdict
        sound += bool(verdict)
        _, error = outcome(plan.run, args, workspace)
        if error is None:  # a call with memory passed: then it was valid, and all of its operands had memory
            assert verdict
            continue
        check_error(error)
        assert verdict or error.issues
    assert sound > 35


def races(descriptor, args):
    """Does a page occur twice in what a corrupted append writes? The remaining rows are then undefined: level full refuses."""
    if descriptor.op != "paged_kv_append":
        return False
    pages = (args.kv_indices[: args.kv_indptr[-1]] if args.block_table is None else args.block_table).flatten().tolist()
    return len(set(pages)) < len(pages)


def right(descriptor, args, sku, before):
    report = numerics.check(descriptor, args, sku, rows=6, before=before)
    assert report.worst <= 1.0, report


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_calls_that_run(chunk):
    ran = 0
    for i, rng in enumerate(seeded(chunk, 60, "run")):
        descriptor = small(problems.OPS[i % len(problems.OPS)], rng)
        plan = Plan.select(descriptor, None, Target.cpu())
        args = inputs.make_args(descriptor, seed=rng.randrange(1000))
        wrong_indices = rng.random() < 0.3 and tables_of(descriptor) is not None
        if wrong_indices:
            args = corrupt(descriptor, args, rng).args
        elif rng.random() < 0.2:
            args = spoiled_args(rng, args, 1)
        sound = all(isinstance(getattr(args, name), torch.Tensor) for name in inout(descriptor))
        before = numerics.snapshot(descriptor, args) if sound else None
        _, error = outcome(plan.run, args)
        if error is None:
            ran += 1
            if not wrong_indices or not races(descriptor, args):
                right(descriptor, args, plan.sku, before)
        else:
            check_error(error)
            assert not wrong_indices or isinstance(error, IndexDataError)
    assert ran > 25
