"""A family may define forms of operands in its own folder. The family `two_level` defines two: codes with two levels of
scales, and a list of one tensor per peer.
"""

from dataclasses import replace

import pytest
import torch
from torch._subclasses import FakeTensorMode

from opfacade import Plan, Target, explain, load_descriptor, torch_ops
from opfacade.core.candidate import NO_FAST_PATHS, FastPaths, fast_paths_of
from opfacade.core.descriptor import operands_of
from opfacade.core.forms import expanded
from opfacade.core.operands import Dim, TensorSpec, nbytes
from opfacade.errors import DescriptorError, DeviceMismatchError
from opfacade.testing import inputs
from opfacade.testing.harness import harness_of
from opfacade.testing.subject import Subject
from opfacade.tools import operand_table, verify
from opfacade.tools.replay import replay
from tests.families.mount import mounted
from tests.support.assert_guarantee import hold

CPU = Target.cpu()
PARTS = ["weight", "weight_scale", "weight_outer"]


@pytest.fixture
def family():
    with mounted("two_level") as plans:
        yield plans


@pytest.fixture
def problem(family):
    return family.RestoreDescriptor(rows=5, width=32)


def wanted(args):
    """The expected output, computed from the definition one element at a time."""
    out = torch.empty(args.out.shape, dtype=torch.float64)
    for row, column in torch.cartesian_prod(*map(torch.arange, out.shape)).tolist():
        code = (int(args.weight[row, column // 2]) >> 4 * (column % 2) & 15) - 8
        scale = float(args.weight_scale[row, column // 8].float()) * float(args.weight_outer[row])
        out[row, column] = code * scale + float(args.shard_0[row, column]) + float(args.shard_1[row, column])
    return out.float()


def test_the_operands_of_a_form_are_separate_tensors(problem):
    assert list(operands_of(problem)) == [*PARTS, "shard_0", "shard_1", "out"]
    assert problem.args_type.docs["weight_outer"] == "set by a Packed in weight"
    assert load_descriptor(problem.model_dump_json()) == problem


def test_a_call_accepts_values_that_represent_several_tensors(family, problem):
    assert explain(problem, target=CPU).chosen.name == "reference/torch"
    plan, args = Plan.select(problem, target=CPU), inputs.make_args(problem, seed=3)
    assert bool(args.out.isnan().all())
    want = wanted(args)
    plan.run(args)
    assert torch.equal(args.out, want)
    whole = family.Packed(args.weight, args.weight_scale, args.weight_outer)
    again = family.RestoreArgs(weight=whole, shards=[args.shard_0, args.shard_1], out=torch.full_like(want, torch.nan))
    plan.run(again)
    assert torch.equal(again.out, want)
    assert replace(again, out=args.out).weight_outer is args.weight_outer


REFUSED = {
    "a scale of another type": (
        lambda a: {"weight_scale": a.weight_scale.float()},
        ("OPF-A010", "weight_scale", "torch.float8_e4m3fn", "torch.float32"),
    ),
    "codes of another shape": (
        lambda a: {"weight": a.weight[:, :5]},
        ("OPF-A011", "weight", "shape [rows=5, width / 2=16]", "[5, 5]"),
    ),
    "no outer scale": (lambda a: {"weight_outer": None}, ("OPF-A002", "weight_outer", "a torch.Tensor", "None")),
    "rows by the family's rule": (
        lambda a: {"weight_scale": torch.zeros(5, 6, dtype=torch.float8_e4m3fn)[:, :4]},
        ("TWO-L001", "weight_scale", "rows a power of two of elements apart", "stride 6"),
    ),
    "a pair for the whole": (
        lambda a: {"weight": (a.weight, a.weight_scale)},
        ("TWO-L003", "weight", "a Packed or its codes", "a tuple of 2"),
    ),
    "too many peers": (
        lambda a: {"shards": [a.shard_0] * 4, "shard_0": None, "shard_1": None},
        ("OPF-A008", "shards", "a list of at most 3 tensors", "a list of 4"),
    ),
    "a peer that the descriptor lacks": (
        lambda a: {"shards": [a.shard_0, a.shard_1, a.shard_0.clone()]},
        ("OPF-A001", "shard_2", "None for this descriptor", "Tensor"),
    ),
    "a peer's memory as output": (
        lambda a: {"out": a.shard_1},
        ("OPF-A040", "out", "memory separate from shard_1", "overlap"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_states_the_argument_the_expected_and_the_actual_value(problem, name):
    change, want = REFUSED[name]
    args = inputs.make_args(problem, seed=3)
    issues = Plan.select(problem, target=CPU).can_implement(replace(args, **change(args))).issues
    assert [(issue.code, issue.argument, issue.expected, issue.got) for issue in issues] == [want]


@pytest.mark.parametrize(
    ("devices", "issues"),
    [
        ((3, 3, 4), []),
        ((3, 4, 4), [("TWO-L002", "shard_0", "a tensor on cuda:3", "cuda:4")]),
        ((3, 3, 3), [("TWO-L002", "shard_1", "a tensor on cuda:4", "cuda:3")]),
    ],
)
def test_the_device_of_a_peer_is_restricted_only_by_its_own_rule(problem, devices, issues):
    home, *peers = [torch.device("cuda", index) for index in devices]
    plan, args = Plan.select(problem, target=CPU), inputs.make_args(problem, seed=3)
    with FakeTensorMode():
        tensors = {
            name: torch.empty([dim.size for dim in spec.shape], dtype=getattr(args, name).dtype, device=home)
            for name, spec in operands_of(problem).items()
        }
        tensors |= {f"shard_{rank}": torch.empty(5, 32, device=device) for rank, device in enumerate(peers)}
        call = replace(args, **tensors)
        found = plan.can_implement(call).issues
        elsewhere = plan.can_implement(replace(call, weight_outer=torch.empty(5, device="cuda:0"))).issues
    assert [(one.code, one.argument, one.expected, one.got) for one in found] == issues
    assert ("OPF-A031", "weight_outer") in [(one.code, one.argument) for one in elsewhere]


def test_an_error_of_a_rule_is_raised_before_anything_is_written(problem, monkeypatch):
    plan, args = Plan.select(problem, target=CPU), inputs.make_args(problem, seed=3)
    rules = operands_of(problem)["shard_1"].rules
    monkeypatch.setattr(type(rules), "issues", lambda self, name, tensor, first: [] if self.hops == 0 else _misplaced(name))
    with pytest.raises(DeviceMismatchError, match="TWO-L002"):
        plan.run(args)
    assert bool(args.out.isnan().all())


def _misplaced(name):
    from opfacade.errors import Issue

    return [Issue("TWO-L002", name, "a tensor on cuda:1", "cpu", kind="DeviceMismatchError")]


def test_the_byte_count_covers_all_tensors_of_a_form(problem):
    read, written = 5 * (32 // 2 + 32 // 8 + 4) + 2 * 5 * 32 * 4, 5 * 32 * 4
    assert nbytes(operands_of(problem).values()) == read + written
    assert harness_of(problem).amount(problem, None).bytes == read + written


def test_an_operand_too_large_for_64_bit_offsets_is_refused(family):
    with pytest.raises(DescriptorError, match=r"width|rows"):
        family.RestoreDescriptor(rows=2**40, width=2**40)


def test_fake_and_compiled_calls_have_the_shape_of_the_output(problem):
    assert "restore" in torch_ops.define_all()
    plan, args = Plan.select(problem, target=CPU), inputs.make_args(problem, seed=3)
    tensors = [getattr(args, name) for name in (*PARTS, "shard_0", "shard_1")]
    with FakeTensorMode() as mode:
        fake = torch.ops.opfacade.restore_functional(plan.handle, *map(mode.from_tensor, tensors))
    assert (tuple(fake.shape), fake.dtype) == ((5, 32), torch.float32)
    compiled = torch.compile(lambda *given: torch.ops.opfacade.restore_functional(*given) * 2, backend="eager", fullgraph=True)
    assert torch.equal(compiled(plan.handle, *tensors), 2 * wanted(args))


def test_conformance_and_verify(family, problem):
    for rows in (5, 0, 1):
        hold(Subject(family.RestoreDescriptor(rows=rows, width=32), "reference", "cpu"))
    found = verify.verify(quick=True, backend="reference", say=lambda text: None, descriptors=[problem])
    assert found["ok"]


def test_a_dumped_call_is_replayed(problem, monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_LOG", "dump")
    monkeypatch.setenv("OPFACADE_LOG_DEST", str(tmp_path / "log"))
    monkeypatch.setenv("OPFACADE_DUMP_DIR", str(tmp_path / "dumps"))
    Plan.select(problem, target=CPU).run(inputs.make_args(problem, seed=3))
    monkeypatch.delenv("OPFACADE_LOG")
    (again,) = replay(tmp_path / "dumps")
    assert (again.same, again.sound) == (True, True)


def test_the_table_of_tensors_has_one_row_per_field(family):
    rows = [line.split(" | ") for line in operand_table.table("restore")]
    assert [(row[0], row[2]) for row in rows[1:]] == [
        ("| `weight`", "f32, f8_e4m3, u8"),
        ("| `shards`", "f32"),
        ("| `out`", "f32"),
    ]


def test_the_host_library_does_not_check_calls_with_rules(problem):
    def launch(args, workspace):
        raise AssertionError

    launch.fast_paths = lambda workspace_bytes, operands: FastPaths(None, None)
    with_rules = operands_of(problem)
    without = {name: spec._replace(rules=None) for name, spec in with_rules.items()}
    assert fast_paths_of(launch, False, 0, with_rules) is NO_FAST_PATHS
    assert fast_paths_of(launch, False, 0, without) == FastPaths(None, None)


def test_names_of_tensors_must_be_unique_and_the_first_operand_determines_the_device(family):
    spec, rows = TensorSpec((Dim("rows", 4),), "f32"), Dim("rows", 4)
    form = family.TwoLevel(rows, 32, 8)
    assert list(expanded({"x": spec, "w": form})) == ["x", "w", "w_scale", "w_outer"]
    for operands in ({"w": form, "w_scale": spec}, {"w_scale": spec, "w": form}):
        with pytest.raises(TypeError, match="w_scale"):
            expanded(operands)
    with pytest.raises(TypeError, match="shard_0"):
        expanded({"shard": family.Shards((rows,), 2), "x": spec})
