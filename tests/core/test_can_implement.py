"""can_implement and run: a wrong call gets all of its issues and writes nothing."""

import math
import threading
from dataclasses import fields, replace

import pytest
import torch

from opfacade import Plan, Preference, Target, Workspace
from opfacade.errors import (
    AliasError,
    ArgumentError,
    ArgumentTypeError,
    DeviceMismatchError,
    DTypeError,
    ShapeError,
    UnsupportedError,
    WorkspaceError,
)
from opfacade.plans.attention import BatchPagedDecodeArgs
from opfacade.select.registry import candidates_for
from tests.support.problems import append, bits, cache, cloned, decode, i32, on_reference, prefill, ragged
from tests.support.sound_calls import OUTPUTS, PROBLEMS, assert_refused, remembered

OPERANDS = [(problem, name) for problem, make in PROBLEMS.items() for name in make()[0].operands()]
SM_90A = Target.parse("sm_90a")


def cuda_plan(descriptor, **prefer):
    if not any(c.backend == "cuda" for c in candidates_for(type(descriptor))):
        pytest.skip("no CUDA candidate for this op")
    return Plan.select(descriptor, Preference(backend="cuda", **prefer), SM_90A)


def on_meta(args):
    return replace(args, **{n: t.to("meta") for n in type(args).__slots__ if (t := getattr(args, n)) is not None})


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_sound_call_is_truthy_and_runs(name):
    descriptor, args = PROBLEMS[name]()
    plan = on_reference(descriptor)
    verdict = plan.can_implement(args)
    assert verdict
    assert verdict.issues == ()
    plan.run(args)
    written = [n for n, spec in descriptor.operands().items() if spec.role == "out"]
    assert not any(torch.isnan(getattr(args, n)).any() for n in written)


@pytest.mark.parametrize(("problem", "name"), OPERANDS)
def test_every_operand_is_checked(problem, name):  # rows 20 to 22, 36
    descriptor, args = PROBLEMS[problem]()
    plan, tensor = on_reference(descriptor), getattr(args, name)
    wrong_dtype = torch.int64 if tensor.dtype == torch.int32 else torch.float64
    assert_refused(plan, replace(args, **{name: None}), ArgumentTypeError, "OPF-A002", name, "None")
    assert_refused(
        plan, replace(args, **{name: tensor.to(wrong_dtype)}), DTypeError, "OPF-A010", name, str(tensor.dtype), str(wrong_dtype)
    )
    assert_refused(plan, replace(args, **{name: tensor[None]}), ShapeError, "OPF-A011", name, str([1, *tensor.shape]))


@pytest.mark.parametrize(("problem", "name"), OPERANDS)
def test_every_operand_too_long_is_refused_unless_its_size_is_free(problem, name):
    descriptor, args = PROBLEMS[problem]()
    tensor = getattr(args, name)
    longer = torch.cat([tensor, tensor[:1]])
    if name == "kv_indices":
        assert on_reference(descriptor).can_implement(replace(args, kv_indices=longer))
    else:
        assert_refused(
            on_reference(descriptor), replace(args, **{name: longer}), ShapeError, "OPF-A011", name, str(list(longer.shape))
        )


def test_every_issue_of_a_call_is_in_one_verdict():
    descriptor, args = PROBLEMS["prefill"]()
    wrong = replace(args, q=args.q.float(), q_indptr=args.q_indptr.long(), kv_indptr=None, o=args.o[1:], block_table=i32([1]))
    error = assert_refused(on_reference(descriptor), wrong, DTypeError, "OPF-A010", "  block_table expected None")
    found = {(i.argument, i.code) for i in error.issues}
    assert found == {
        ("q", "OPF-A010"), ("q_indptr", "OPF-A010"), ("kv_indptr", "OPF-A002"), ("o", "OPF-A011"), ("block_table", "OPF-A001"),
    }  # fmt: skip
    assert [line.rpartition(" ")[2] for line in str(on_reference(descriptor).can_implement(wrong)).splitlines()] == [
        f"[{i.code}]" for i in error.issues
    ]


@pytest.mark.parametrize(("form", "other"), [("csr", "block"), ("block", "csr")])
def test_the_tables_of_the_other_form_are_told_with_the_field_that_asks_for_them(form, other):
    (descriptor, _), (_, args) = decode([6, 9], page_table=form), decode([6, 9], page_table=other)
    error = assert_refused(on_reference(descriptor), args, ArgumentTypeError, {"csr": "OPF-A002", "block": "OPF-A001"}[form])
    assert [issue.hint for issue in error.issues if issue.hint] == [f"Set page_table={other!r} in the descriptor."]
    assert len(error.issues) == 5


@pytest.mark.parametrize(("more", "change", "hint"), [
    ({}, {"lse": None}, "return_lse=False in the descriptor leaves it out."),
    ({"return_lse": False}, {"lse": torch.empty(2, 4)}, "Set return_lse=True in the descriptor."),
    ({"sinks": True}, {"sinks": None}, "sinks=False in the descriptor leaves it out."),
    ({}, {"k_scale": torch.ones(1)}, ""),  # an f16 cache has no factors
    ({}, {"q": None}, ""),
    ({}, {"lse": [1.0]}, "This operand takes no list of tensors."),
])  # fmt: skip
def test_the_field_of_an_operand_is_told_where_it_can_be_set(more, change, hint):
    descriptor, args = decode([6, 9], **more)
    [issue] = on_reference(descriptor).can_implement(replace(args, **change)).issues
    assert issue.hint == hint


def test_the_factors_of_an_fp8_cache_are_told_once():
    pool = cache(dtype="f8_e4m3")
    for given, hint in (("none", "Set kv_scale='tensor' or 'head'"), ("tensor", "kv_scale='none'")):
        descriptor, args = decode([6, 9], paged_kv=pool, q_dtype="f16", kv_scale=given)
        one = torch.ones(1) if given == "none" else None
        issues = on_reference(descriptor).can_implement(replace(args, k_scale=one, v_scale=one)).issues
        assert [issue.hint[: len(hint)] for issue in issues] == [hint, ""]


def test_the_message_names_shape_in_symbols_and_numbers():
    descriptor, args = PROBLEMS["decode"]()
    wanted = "expected shape [batch_size=2, num_qo_heads=4, head_dim=8], got [1, 4, 8]."
    assert_refused(on_reference(descriptor), replace(args, q=args.q[:1]), ShapeError, "OPF-A011", "paged_decode.run: q", wanted)


@pytest.mark.parametrize("thing", [None, {}, "args"])
def test_what_is_no_bundle_is_a_type_error(thing):
    plan = on_reference(PROBLEMS["decode"]()[0])
    assert [i.code for i in plan.can_implement(thing).issues] == ["OPF-A000"]
    with pytest.raises(TypeError, match="OPF-A000"):
        plan.run(thing)


def test_the_bundle_of_another_op_is_refused():
    plan = on_reference(PROBLEMS["decode"]()[0])
    assert_refused(
        plan, PROBLEMS["ragged"]()[1], ArgumentTypeError, "OPF-A000", "BatchPagedDecodeArgs", "BatchRaggedPrefillArgs"
    )


def test_a_bundle_is_frozen_and_keyword_only():
    args = PROBLEMS["decode"]()[1]
    with pytest.raises(AttributeError):
        args.q = args.o
    with pytest.raises(TypeError):
        BatchPagedDecodeArgs(*(getattr(args, f.name) for f in fields(args)))


@pytest.mark.parametrize(("problem", "a", "b"), [
    ("prefill", "o", "q"), ("decode", "o", "q"), ("ragged", "o", "q"), ("append", "k_data", "v_data"),
])  # fmt: skip
def test_an_output_over_another_operand_is_refused(problem, a, b):  # row 35
    descriptor, args = PROBLEMS[problem]()
    assert_refused(on_reference(descriptor), replace(args, **{a: getattr(args, b)}), AliasError, "OPF-A040", a, b)


def test_a_partial_overlap_is_refused():  # row 35
    descriptor, args = PROBLEMS["decode"]()
    room = torch.full((3, 4, 8), math.nan, dtype=torch.float16)
    assert_refused(on_reference(descriptor), replace(args, q=room[:2], o=room[1:]), AliasError, "OPF-A040", "o", "q")


def test_appended_rows_inside_the_cache_are_refused():  # row 35
    descriptor, args = append([1, 1], [4, 4], paged_kv=cache(page_size=1))
    assert_refused(on_reference(descriptor), replace(args, k_new=args.k_data[:2, 0]), AliasError, "OPF-A040", "k_data", "k_new")


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(
    "make", [lambda **k: decode([6, 9], **k), lambda **k: append([3, 2], [6, 9], **k)], ids=["decode", "append"]
)
def test_keys_and_values_interleaved_in_one_buffer_are_accepted(make, layout):
    """The token stride is then 2 * head_dim, as vLLM's fused caches have it."""
    descriptor, args = make(paged_kv=cache(layout=layout))
    tokens, heads = (4, 2) if layout == "NHD" else (2, 4)
    buffer = torch.zeros(24, tokens, heads, 2, 8, dtype=torch.float16)
    mixed = replace(args, k_data=buffer[:, :, :, 0], v_data=buffer[:, :, :, 1])
    plan = on_reference(descriptor)
    for _ in range(2):
        assert plan.can_implement(mixed)
        plan.run(replace(mixed))
    assert plan.can_implement(on_meta(mixed))


@pytest.mark.parametrize("name", PROBLEMS)
def test_meta_tensors_are_checked_but_not_run(name):  # row 39
    descriptor, args = PROBLEMS[name]()
    plan, meta = on_reference(descriptor), on_meta(args)
    assert plan.can_implement(meta)
    with pytest.raises(UnsupportedError, match="OPF-R001"):
        plan.run(meta)
    first = next(iter(descriptor.operands()))
    wrong = replace(meta, **{first: getattr(meta, first)[:-1]})
    assert [i.code for i in plan.can_implement(wrong).issues][:1] == ["OPF-A011"]


def test_fake_tensors_are_checked_but_not_run():  # row 40
    from torch._subclasses.fake_tensor import FakeTensorMode

    descriptor, args = PROBLEMS["decode"]()
    plan = on_reference(descriptor)
    with FakeTensorMode() as mode:
        fake = replace(args, **{n: mode.from_tensor(t) for n in type(args).__slots__ if (t := getattr(args, n)) is not None})
        assert plan.can_implement(fake)
        assert [i.code for i in plan.can_implement(replace(fake, q=fake.q[:1])).issues] == ["OPF-A011"]
        with pytest.raises(UnsupportedError, match="OPF-R001"):
            plan.run(fake)


@pytest.mark.parametrize("name", ["k_data", "kv_indices", "o"])
def test_a_fake_tensor_among_others_is_refused(name):
    from torch._subclasses.fake_tensor import FakeTensorMode

    plan, args = remembered()
    mixed = replace(args, **{name: FakeTensorMode().from_tensor(getattr(args, name))})
    assert [(i.code, i.argument) for i in plan.can_implement(mixed).issues] == [("OPF-A032", name)]
    with pytest.raises(DeviceMismatchError, match=f"{name} expected a tensor with memory, as q, got one without memory"):
        plan.run(mixed)


STRANGE_WORKSPACES = {
    "sparse": (lambda: torch.zeros(4096, dtype=torch.uint8).to_sparse(), "OPF-A004"),
    "nested": (lambda: torch.nested.nested_tensor([torch.zeros(64), torch.zeros(9)]).to(torch.uint8), "OPF-A004"),
    "shrunk": (lambda: shrunk(torch.zeros(4096, dtype=torch.uint8), 64), "OPF-A055"),
}


def shrunk(tensor, size):
    tensor.untyped_storage().resize_(size)
    return tensor


@pytest.mark.parametrize("name", STRANGE_WORKSPACES)
def test_a_strange_workspace_is_refused(name):
    make, code = STRANGE_WORKSPACES[name]
    plan, args = remembered()
    error = assert_refused(plan, args, WorkspaceError, code, workspace=make())
    assert error.needed == 0


def test_vmapped_tensors_are_refused_not_crashed_on():  # row 41
    descriptor, args = PROBLEMS["decode"]()
    plan = on_reference(descriptor)
    plan.run(args)

    def call(q):
        with pytest.raises((UnsupportedError, ArgumentError), match="OPF-A0"):
            plan.run(replace(args, q=q))
        return q

    torch.func.vmap(call)(torch.zeros(3, 2, 4, 8, dtype=torch.float16))


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_cuda_plan_checks_meta_tensors_and_refuses_the_cpus(name):  # row 32
    descriptor, args = PROBLEMS[name]()
    wide = (
        {"head_dim": 64}
        if name in ("ragged", "merge")
        else {"paged_kv": descriptor.paged_kv.model_copy(update={"head_dim": 64})}
    )
    descriptor = type(descriptor)(**(dict(descriptor) | wide))
    plan = cuda_plan(descriptor)
    resized = replace(args, **{
        n: torch.zeros(*getattr(args, n).shape[:-1], 64, dtype=getattr(args, n).dtype)
        for n, spec in descriptor.operands().items() if spec.shape[-1].name == "head_dim"
    })  # fmt: skip
    assert plan.can_implement(on_meta(resized))
    assert_refused(plan, resized, DeviceMismatchError, "OPF-A030", next(iter(descriptor.operands())), "cuda", "cpu")


def split_plan():
    """A CUDA plan that needs a workspace, and its arguments."""
    descriptor, args = decode([6, 9], paged_kv=cache(head_dim=64), kv_split=64)
    return cuda_plan(descriptor), on_meta(args)


def test_a_workspace_is_checked_with_the_call():  # row 44
    plan, meta = split_plan()
    assert plan.workspace_size > 0
    assert plan.can_implement(meta, torch.empty(plan.workspace_size, dtype=torch.uint8, device="meta"))
    short = torch.empty(plan.workspace_size - 1, dtype=torch.uint8, device="meta")
    error = assert_refused(plan, meta, WorkspaceError, "OPF-A053", str(plan.workspace_size), workspace=short)
    assert (error.needed, error.got) == (plan.workspace_size, plan.workspace_size - 1)
    assert_refused(plan, meta, WorkspaceError, "OPF-A052", "meta", workspace=torch.empty(1 << 20, dtype=torch.uint8))
    assert_refused(plan, meta, WorkspaceError, "OPF-A050", "list", workspace=[0])


def test_a_workspace_without_memory_counts_from_an_aligned_address():
    plan, meta = split_plan()
    room = torch.empty(plan.workspace_size + 256, dtype=torch.uint8, device="meta")
    assert plan.can_implement(meta, room[256:])
    assert_refused(plan, meta, WorkspaceError, "OPF-A054", "storage_offset mod 256 = 8", workspace=room[8:])


def test_a_workspace_object_is_answered_with_the_call_that_takes_its_memory():
    plan, meta = split_plan()
    assert_refused(plan, meta, WorkspaceError, "OPF-A050", "Pass workspace.of(plan).", workspace=Workspace("cpu"))


@pytest.mark.parametrize("name", ["q", "o", "kv_indices"])
def test_a_workspace_over_an_operand_is_refused(name):  # row 35
    plan, args = remembered()
    room = torch.zeros(1 << 12, dtype=torch.uint8)
    tensor = getattr(args, name)
    over = room[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    over.copy_(tensor)
    workspace = room[tensor.nbytes - 1 :]
    assert_refused(plan, replace(args, **{name: over}), AliasError, "OPF-A041", "workspace", name, workspace=workspace)
    plan.run(replace(args, **{name: over}), room[tensor.nbytes :])


def test_an_unneeded_workspace_is_left_alone():
    plan, args = remembered()
    workspace = torch.full((64,), 7, dtype=torch.uint8)
    plan.run(args, workspace)
    assert (workspace == 7).all()


@pytest.mark.parametrize(("q", "kv"), [([], []), ([0, 0], [6, 9]), ([3, 2], [0, 0])])
def test_empty_calls_are_sound(q, kv):
    for descriptor, args in (prefill(q, kv), ragged(q, kv)):
        plan = on_reference(descriptor)
        assert plan.can_implement(args)
        plan.run(args), plan.run(replace(args))


def test_one_plan_serves_many_threads():  # row 80
    descriptor, args = decode([6, 9])
    plan, wrong = on_reference(descriptor), []
    plan.run(args)

    def work():
        own = cloned(args)
        for _ in range(30):
            own.o.fill_(math.nan)
            plan.run(own), plan.run(replace(own))
            if not torch.equal(own.o, args.o):
                wrong.append(own)

    threads = [threading.Thread(target=work) for _ in range(6)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert wrong == []


def test_validation_off_checks_nothing(monkeypatch):
    from opfacade import plan as plan_module

    monkeypatch.setenv("OPFACADE_VALIDATE", "off")
    monkeypatch.setattr(plan_module, "_selected", {})
    descriptor, args = PROBLEMS["decode"]()
    plan = on_reference(descriptor)
    monkeypatch.setattr(plan_module, "call_issues", lambda *a: pytest.fail("checked"))
    plan.run(args)
    assert not torch.isnan(args.o).any()


def test_a_forked_child_may_run_the_reference():  # row 79
    import os

    descriptor, args = PROBLEMS["decode"]()
    plan = on_reference(descriptor)
    plan.run(args)
    child = os.fork()
    if child == 0:
        plan.run(args)
        os._exit(0 if not torch.isnan(args.o).any() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_everything_wrong_is_told_at_once():
    descriptor, args = decode([6, 9])
    wrong = replace(args, q=args.q.double(), lse=args.o.view(torch.float32).flatten()[: args.lse.numel()].view(args.lse.shape))
    issues = on_reference(descriptor).can_implement(wrong, torch.empty(3, dtype=torch.float32)).issues
    assert [(i.code, i.argument) for i in issues] == [("OPF-A010", "q"), ("OPF-A040", "o"), ("OPF-A051", "workspace")]


@pytest.mark.parametrize("name", PROBLEMS)
def test_outputs_of_inference_mode_are_written(name):
    descriptor, args = PROBLEMS[name]()
    plan = on_reference(descriptor)
    with torch.inference_mode():
        inner = cloned(args)
    plan.run(inner)
    plan.run(args)
    for output in OUTPUTS:
        if getattr(args, output, None) is not None:
            assert torch.equal(bits(getattr(args, output)), bits(getattr(inner, output)))
