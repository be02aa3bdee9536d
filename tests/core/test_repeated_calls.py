"""An earlier valid call hides no error of the next call."""

import math
from dataclasses import replace

import pytest
import torch

from opfacade.core.candidate import FastPaths, fast_paths_of
from opfacade.errors import (
    AliasError,
    ArgumentError,
    ArgumentTypeError,
    GradNotSupportedError,
    LayoutError,
    ShapeError,
    UnsupportedError,
    WorkspaceError,
)
from opfacade.plans.attention import BatchPagedDecodeArgs
from tests.support.problems import decode, on_reference
from tests.support.sound_calls import PROBLEMS, assert_refused, remembered


def test_a_remembered_shape_does_not_hide_an_alias():
    plan, args = remembered()
    assert_refused(plan, replace(args, o=args.q), AliasError, "OPF-A040", "o", "q")
    plan.run(args)


def test_a_remembered_shape_does_not_hide_a_partial_alias():
    plan, args = remembered()
    room = torch.full((3, 4, 8), math.nan, dtype=torch.float16)
    assert_refused(plan, replace(args, q=room[:2], o=room[1:]), AliasError, "OPF-A040")


def test_a_remembered_shape_does_not_hide_a_misaligned_address():
    plan, args = remembered()
    shifted = torch.zeros(2 * 4 * 8 + 8, dtype=torch.float16)[1:65].view(2, 4, 8)
    assert_refused(plan, replace(args, q=shifted), ArgumentError, "OPF-A025", "mod 16 = 2")


@pytest.mark.parametrize("same_bundle", [True, False])
@pytest.mark.parametrize("size", [0, 16])
@pytest.mark.parametrize("name", ["q", "k_data", "kv_indices", "o"])
def test_a_storage_shrunk_after_a_sound_call_is_refused(name, size, same_bundle):  # row 43
    plan, args = remembered()
    getattr(args, name).untyped_storage().resize_(size)
    call = args if same_bundle else replace(args)
    assert [i.code for i in plan.can_implement(call).issues] == ["OPF-A024"]
    with pytest.raises(LayoutError, match=f"got {size}"):
        plan.run(call)


@pytest.mark.parametrize(("name", "change", "code"), [
    ("q", lambda t: t.float(), "OPF-A010"),
    ("q", lambda t: t[:1], "OPF-A011"),
    ("kv_indptr", lambda t: t.long(), "OPF-A010"),
    ("q", lambda t: t.clone().requires_grad_(), "OPF-A006"),
    ("q", torch._neg_view, "OPF-A005"),
    ("o", lambda t: torch.zeros(1, 4, 8, dtype=t.dtype).expand(2, 4, 8), "OPF-A022"),
    ("q", lambda t: None, "OPF-A002"),
])  # fmt: skip
def test_a_remembered_call_does_not_hide_a_wrong_tensor(name, change, code):
    plan, args = remembered()
    wrong = replace(args, **{name: change(getattr(args, name))})
    assert [i.code for i in plan.can_implement(wrong).issues] == [code]
    with pytest.raises((ArgumentError, UnsupportedError), match=code):
        plan.run(wrong)


def test_a_tensor_allowed_without_gradients_is_refused_with_them():
    descriptor, args = PROBLEMS["decode"]()
    plan, args = on_reference(descriptor), replace(args, q=args.q.requires_grad_())
    with torch.no_grad():
        plan.run(args)
    assert not torch.isnan(args.o).any()
    with pytest.raises(GradNotSupportedError, match="OPF-A006"):
        plan.run(args)


def test_a_dead_bundle_is_not_confused_with_a_new_one():
    descriptor, args = PROBLEMS["decode"]()
    plan = on_reference(descriptor)
    for _ in range(50):
        plan.run(replace(args))
        wrong = replace(args, o=args.q)
        assert not plan.can_implement(wrong)
        del wrong


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused_also_by_a_plan_that_knows_a_sound_call(warm):
    descriptor, args = decode([6, 9])
    plan = on_reference(descriptor)
    if warm:
        plan.run(args)
    nested = torch.nested.nested_tensor([row.clone() for row in args.q])
    assert_refused(plan, replace(args, q=nested), LayoutError, "OPF-A004", "nested")


IN_PLACE = {
    "resized": (lambda args: args.q.resize_(1, *args.q.shape[1:]), ShapeError, "OPF-A011"),
    "with a gradient": (lambda args: args.q.requires_grad_(), GradNotSupportedError, "OPF-A006"),
    "with one dimension more": (lambda args: args.q.unsqueeze_(0), ShapeError, "OPF-A011"),
    "strided": (lambda args: args.lse.as_strided_(args.lse.shape, (0, 1)), LayoutError, "OPF-A020"),
    "without one": (lambda args: object.__setattr__(args, "q", None), ArgumentTypeError, "OPF-A002"),
}


@pytest.mark.parametrize("change", IN_PLACE)
def test_the_bundle_admitted_last_is_looked_at_again_when_its_tensors_changed_in_place(change):
    descriptor, args = decode([6, 9])
    plan = on_reference(descriptor)
    plan.run(args)
    act, error, code = IN_PLACE[change]
    act(args)
    assert_refused(plan, args, error, code)


def test_a_workspace_that_became_smaller_in_place_is_refused(fresh_telemetry):  # and no plan that other tests would see changed
    descriptor, args = decode([6, 9])
    plan = on_reference(descriptor)
    object.__setattr__(plan, "workspace_size", 64)
    workspace = torch.empty(512, dtype=torch.uint8)[-torch.empty(0).data_ptr() % 256 :]
    workspace = workspace[-workspace.data_ptr() % 256 :]
    plan.run(args, workspace)
    workspace.resize_(63)
    assert_refused(plan, args, WorkspaceError, "OPF-A053", "63", workspace=workspace)


@pytest.mark.parametrize("size", [0, 511])
def test_a_workspace_whose_storage_shrank_is_refused(size):
    descriptor, args = decode([6, 9])
    plan, workspace = on_reference(descriptor), torch.empty(512, dtype=torch.uint8)
    plan.run(args, workspace)
    workspace.untyped_storage().resize_(size)
    for call in (args, replace(args)):
        assert_refused(plan, call, WorkspaceError, "OPF-A055", "512 bytes of storage", str(size), workspace=workspace)


def test_a_bundle_of_another_type_is_refused_also_when_its_tensors_are_known():
    class Other(BatchPagedDecodeArgs):
        __slots__ = ()

    descriptor, args = decode([6, 9])
    plan = on_reference(descriptor)
    plan.run(args)
    other = Other(**{name: getattr(args, name) for name in BatchPagedDecodeArgs.__slots__})
    assert_refused(plan, other, ArgumentTypeError, "OPF-A000", "Other")


@pytest.mark.parametrize("wrapped", [False, True])
def test_fast_paths_launch_nothing_where_something_must_see_each_call(wrapped):
    """Only the check is called: a verdict without a launch."""
    made = []

    def launch(args, workspace):
        raise AssertionError("the launcher itself is not called here")

    def paths(workspace_bytes, operands):
        return FastPaths(lambda *call: made.append("replay"), lambda args, workspace, run: not (run and made.append("fast")))

    launch.fast_paths = paths
    found = fast_paths_of(launch, wrapped, 0, {})
    assert found.fast(None, None, False)
    assert made == []
    found.replay(1, 2), found.fast(None, None, True)
    assert made == ([] if wrapped else ["replay", "fast"])
