"""Validation levels on the reference: the refusals of each level, before anything is written."""

import pytest
import torch

from opfacade import Plan, Preference, Target, env, errors
from opfacade import plan as plans
from opfacade.errors import ArgumentError, IndexDataError, SettingError
from opfacade.validation import host
from opfacade.validation.rules import tables_of
from tests.support.index_corruption import PROBLEMS, case
from tests.support.problems import append, bits, cache, cloned, decode, prefill, ragged


@pytest.fixture(autouse=True)
def _new_plans(monkeypatch):
    """The level is read when a plan is created: no plan of another level may remain."""
    monkeypatch.setattr(plans, "_selected", {})


@pytest.fixture
def full(monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "full")


def on_reference(descriptor):
    return Plan.select(descriptor, Preference(backend="reference"), Target.cpu())


def refused(problem, kind=IndexDataError):
    """The error of a run that must leave every tensor unchanged."""
    descriptor, args = problem
    before = cloned(args)
    with pytest.raises(kind) as caught:
        on_reference(descriptor).run(args)
    for name in type(args).__slots__:
        if getattr(args, name) is not None:
            assert torch.equal(bits(getattr(args, name)), bits(getattr(before, name))), name
    return caught.value


def test_the_level_is_one_of_four(monkeypatch):
    for level in env.LEVELS:
        monkeypatch.setenv("OPFACADE_VALIDATE", level)
        assert env.validate() == level
    monkeypatch.setenv("OPFACADE_VALIDATE", "paranoid")
    with pytest.raises(SettingError, match=r"off, metadata, indices, full, got 'paranoid'. \[OPF-E001\]"):
        on_reference(PROBLEMS[0])


def test_nothing_stands_around_a_launch_below_indices(monkeypatch):
    for level in ("off", "metadata"):
        monkeypatch.setenv("OPFACADE_VALIDATE", level)
        monkeypatch.setattr(plans, "_selected", {})
        for target in (Target.cpu(), Target.parse("sm_90a")):
            assert Plan.select(PROBLEMS[0], target=target)._guard is None


def test_indices_guards_a_kernel_and_leaves_the_reference_to_itself(monkeypatch):
    monkeypatch.setenv("OPFACADE_VALIDATE", "indices")
    assert on_reference(PROBLEMS[0])._guard is None
    guard = Plan.select(PROBLEMS[0], target=Target.parse("sm_90a"))._guard
    assert type(guard).__name__ == "DeviceGuard"
    guard.check()


@pytest.mark.parametrize("level", ["metadata", "indices", "full"])
@pytest.mark.parametrize("descriptor", PROBLEMS, ids=lambda d: f"{d.op}-{getattr(d, 'page_table', 'ragged')}")
def test_a_sound_call_runs_at_every_level(monkeypatch, level, descriptor):
    from opfacade.testing import inputs

    monkeypatch.setenv("OPFACADE_VALIDATE", level)
    args = inputs.make_args(descriptor, seed=3)
    plan = on_reference(descriptor)
    plan.run(args)
    plan.check()
    assert plan.can_implement(args)


WRONG = {  # row of the catalogue: (problem, operand, position, value, error)
    "46": (lambda: prefill([2, 3], [9, 9]), "q_indptr", 0, 1, (0, 0, 1, "0")),
    "47": (lambda: decode([9, 9, 9]), "kv_indptr", 2, 2, (1, 2, 2, "at least 3")),
    "48": (lambda: decode([9, 9]), "kv_indptr", 2, 90, (1, 2, 90, "a value in [0, {n}]")),
    "50": (lambda: decode([9, 9]), "kv_indptr", 1, -5, (0, 1, -5, "a value in [0, {n}]")),
    "51": (lambda: decode([9, 9]), "kv_indices", 4, -1, (1, 4, -1, "a page in [0, 24)")),
    "52": (lambda: decode([9, 9]), "kv_indices", 1, 24, (0, 1, 24, "a page in [0, 24)")),
    "53": (lambda: decode([9, 9]), "last_page_len", 1, 0, (1, 1, 0, "a length in [1, 4]")),
    "54": (lambda: decode([9, 9]), "last_page_len", 0, 5, (0, 0, 5, "a length in [1, 4]")),
    "58": (lambda: prefill([2, 3], [9, 9]), "q_indptr", 2, 6, (1, 2, 6, "a value in [0, 5]")),
    "58 ragged": (lambda: ragged([2, 3], [4, 4]), "q_indptr", 2, 6, (1, 2, 6, "a value in [0, 5]")),
    "48 ragged": (lambda: ragged([2, 3], [4, 4]), "kv_indptr", 2, 10, (1, 2, 10, "a value in [0, 9]")),
    "63": (lambda: append([2, 3], [9, 2]), "append_indptr", 1, 1, (1, 2, 5, "at most 2 new rows")),
    "74": (lambda: decode([9, 9], page_table="block"), "block_table", 0, 77, (0, 0, 77, "a page in [0, 24)")),
    "75": (lambda: decode([9, 9], page_table="block"), "kv_lens", 1, 500, (1, 1, 500, "a length in [0, {w}]")),
}


def spoiled(row):
    """(descriptor, args with one wrong element, operand, (request, position, value, limit))."""
    make, operand, position, value, wanted = WRONG[row]
    descriptor, args = make()
    getattr(args, operand).view(-1)[position] = value
    sizes = {"n": args.kv_indices.numel() if getattr(args, "kv_indices", None) is not None else 0, "w": 0}
    if getattr(args, "block_table", None) is not None:
        sizes["w"] = args.block_table.shape[1] * descriptor.paged_kv.page_size
    request, at, got, limit = wanted
    return descriptor, args, operand, (request, at, got, limit.format(**sizes))


@pytest.mark.parametrize("row", WRONG)
def test_full_names_what_is_wrong(full, row):
    descriptor, args, operand, wanted = spoiled(row)
    error = refused((descriptor, args))
    assert (error.request, error.position, error.value, error.limit) == wanted
    assert (error.argument, error.asynchronous, error.call_id, error.code) == (operand, False, -1, "OPF-V001")


@pytest.mark.parametrize("row", WRONG)
def test_the_reference_reports_the_same_element_at_the_default_level(row):
    descriptor, args, operand, wanted = spoiled(row)
    with pytest.raises(IndexDataError) as caught:
        on_reference(descriptor).run(args)
    error = caught.value
    assert (error.argument, error.request, error.position, error.value, error.limit) == (operand, *wanted)


@pytest.mark.parametrize("page_table", ["csr", "block"])
def test_the_reference_holds_a_call_to_the_bound_that_kernels_are_cut_by(page_table):
    descriptor, args = decode([9, 9], page_table=page_table)
    bounded = type(descriptor)(**{**dict(descriptor), "max_kv_indices": 5})
    with pytest.raises(IndexDataError) as caught:
        on_reference(bounded).run(args)
    assert (caught.value.value, caught.value.request) == (6, 1)
    on_reference(type(descriptor)(**{**dict(descriptor), "max_kv_indices": 6})).run(args)


@pytest.mark.parametrize("page_table", ["csr", "block"])
@pytest.mark.parametrize("make", [lambda **f: decode([9, 12], **f), lambda **f: prefill([2, 3], [9, 12], **f)])
def test_a_request_beyond_max_kv_len_is_refused(make, page_table):
    descriptor, args = make(page_table=page_table)
    bounded = type(descriptor)(**{**dict(descriptor), "max_kv_len": 11})
    error = refused((bounded, args))
    wanted = {"csr": ("kv_indptr", 2, "a request of at most 11 tokens"), "block": ("kv_lens", 1, "a length in [0, 11]")}
    assert (error.argument, error.position, error.limit) == wanted[page_table]
    assert (error.request, error.value, error.code) == (1, 12, "OPF-V001")
    on_reference(type(descriptor)(**{**dict(descriptor), "max_kv_len": 12})).run(args)


def test_a_ragged_request_beyond_max_kv_len_is_refused():
    descriptor, args = ragged([2, 3], [4, 5])
    bounded = type(descriptor)(**{**dict(descriptor), "max_kv_len": 4})
    error = refused((bounded, args))
    assert (error.argument, error.request, error.position, error.value) == ("kv_indptr", 1, 2, 5)


@pytest.mark.parametrize("page_table", ["csr", "block"])
def test_requests_that_share_pages_need_no_bound(full, page_table):
    """Six requests of six pages each in a pool of twelve: the reference computes the results that each has alone."""
    from opfacade.testing import inputs
    from opfacade.testing.families.attention.requests import Requests

    small = cache(num_total_pages=12, page_size=16)
    for make in (decode, prefill):
        lens = ([96, 90, 96, 81, 96, 96],) if make is decode else ([1] * 6, [96, 90, 96, 81, 96, 96])
        plain, _ = make(*([1] * 6 for _ in lens), page_table=page_table, paged_kv=small)
        args = inputs.make_args(plain, 3, lengths=inputs.DrawnLengths(q=None if make is decode else lens[0], kv=lens[-1]))
        on_reference(plain).run(args)
        requests = Requests(plain, args)
        descriptor, alone = requests.batch([3])
        on_reference(descriptor).run(alone)
        rows = slice(requests.first[3], requests.first[4])
        assert torch.allclose(alone.o.float(), args.o[rows].float(), atol=1e-3)


@pytest.mark.parametrize("page_table", ["csr", "block"])
def test_a_request_has_no_more_pages_than_the_pool(full, page_table):
    """Some would be equal: no plan is created for them."""
    from opfacade.testing import inputs

    descriptor, _ = decode([1, 1], page_table=page_table, paged_kv=cache(num_total_pages=4))
    error = refused((descriptor, inputs.make_args(descriptor, 1, lengths=inputs.DrawnLengths(kv=[3, 17]))))
    assert (error.request, error.value) == (1, 17)


def test_full_tells_every_wrong_request(full):
    descriptor, args = decode([9, 9, 9])
    args.kv_indices[torch.tensor([0, 4])] = -1
    assert [i.argument for i in refused((descriptor, args)).issues] == ["kv_indices[0]", "kv_indices[4]"]


def test_a_wrong_entry_past_the_length_is_nobodys(full):
    descriptor, args = decode([9, 0, 9], page_table="block")
    args.block_table[0, 3:] = -7
    args.block_table[1] = 99
    on_reference(descriptor).run(args)


@pytest.mark.parametrize("page_table", ["csr", "block"])
def test_full_refuses_a_page_that_two_requests_append_to(full, page_table):  # row 62
    descriptor, args = append([2, 2], [6, 6], page_table=page_table)
    pages = args.kv_indices if page_table == "csr" else args.block_table.view(-1)
    second = 2 if page_table == "csr" else args.block_table.shape[1]
    pages[second + 1] = pages[1]
    error = refused((descriptor, args))
    assert (error.code, error.request, error.position) == ("OPF-V002", 1, 3 if page_table == "csr" else 1)
    assert int(args.kv_indices[3] if page_table == "csr" else args.block_table[1, 1]) == error.value
    assert "request 0 also appends to it" in str(error)


def test_full_names_a_request_that_appends_to_a_page_twice(full):
    descriptor, args = append([2, 6], [6, 6])
    args.kv_indices[3] = args.kv_indices[2]
    assert "request 1 has it twice" in str(refused((descriptor, args)))


def test_full_refuses_to_append_to_a_page_that_another_reads(full):  # row 64
    descriptor, args = append([0, 2], [6, 6])
    args.kv_indices[0] = args.kv_indices[3]
    assert "request 0 shares it" in str(refused((descriptor, args)))


def test_full_lets_requests_share_what_none_appends_to(full):  # row 61
    descriptor, args = append([2, 2], [6, 6])
    args.kv_indices[2] = args.kv_indices[0]
    on_reference(descriptor).run(args)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_full_refuses_values_that_are_not_finite(full, value):  # row 65
    descriptor, args = decode([9, 9])
    args.q[1, 2, 3] = value
    error = refused((descriptor, args), ArgumentError)
    assert error.code == "OPF-V003"
    assert error.issues[0].argument == "q[1, 2, 3]"


@pytest.mark.parametrize("value", [0.0, -0.5, float("inf")])
def test_full_tells_the_factor_that_it_refuses(full, value):
    descriptor, args = decode([9, 9], paged_kv=cache(dtype="f8_e4m3"), q_dtype="f16", kv_scale="head")
    args.k_scale[1] = value
    error = refused((descriptor, args), ArgumentError)
    assert f"k_scale[1] expected positive finite values, got {value}. [OPF-V003]" in str(error)


@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_full_looks_at_valid_slots_of_the_pools_only(full, layout):  # rows 65, 66
    descriptor, args = decode([9, 6], paged_kv=cache(layout=layout))
    on_reference(descriptor).run(args)  # unused slots hold NaN already
    page = int(args.kv_indices[4])
    pool = args.v_data.transpose(1, 2) if layout == "HND" else args.v_data
    pool[page, 1] = float("inf")
    error = refused((descriptor, args), ArgumentError)
    assert error.issues[0].argument == f"v_data[{page}, 1]"
    assert "for request 1" in str(error)


def test_full_ignores_the_output_of_empty_states_and_rows_of_nobody(full):
    from opfacade.plans.cascade import EXAMPLES
    from opfacade.testing import inputs

    on_reference(EXAMPLES[0]).run(inputs.make_args(EXAMPLES[0], seed=1))
    descriptor, args = ragged([2, 3], [4, 4])
    assert bool(args.k[-1].isnan().any())
    on_reference(descriptor).run(args)


def outcome(corrupted):
    """The error of a run, or None."""
    try:
        on_reference(corrupted.descriptor).run(corrupted.args)
    except errors.OpfacadeError as error:
        return error
    return None


def test_random_corruptions_never_pass_in_silence(full):
    refusals = 0
    for seed in range(300):
        corrupted = case(seed)
        wrong = host.findings(tables_of(corrupted.descriptor), corrupted.args)
        error = outcome(corrupted)
        assert isinstance(error, IndexDataError) if wrong else error is None or error.code in ("OPF-V002", "OPF-V003"), seed
        refusals += bool(wrong)
    assert refusals > 150
