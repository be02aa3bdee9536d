"""Every op is a torch op: its arguments, its results, and torch's own checks."""

import dataclasses
import gc

import pytest
import torch
from torch._subclasses import FakeTensorMode

from opfacade import Plan, Target, torch_ops
from opfacade.core.operands import nbytes
from opfacade.errors import ArgumentError, GradNotSupportedError, OpfacadeError, PlanStateError
from opfacade.plan import forget_selections
from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.plans.matmul import MatmulDescriptor, Weight
from opfacade.plans.quantize import DequantizeDescriptor, Quant, QuantizeDescriptor
from opfacade.select.registry import descriptor_types, examples
from opfacade.testing import inputs
from opfacade.testing.bits import bits
from opfacade.testing.harness import harness_of
from opfacade.torch_ops.forms import forms_of
from opfacade.torch_ops.library import NAMESPACE, Functional
from tests.families.mount import mounted

CPU = Target.cpu()


def smallest(op):
    """The smallest example of an op whose tensors torch's own checks can compare: fp8 has no arithmetic on the CPU."""
    own = [e for e in examples() if e.op == op]
    plain = [e for e in own if not any(s.dtype.startswith("f8") for s in e.operands().values())]
    least = min(plain or own, key=lambda e: ("num_valid" in e.operands(), nbytes(list(e.operands().values()))))
    # Rows past num_valid may have any bits, so two runs of a functional form differ there.
    return type(least).model_validate(least.model_dump() | {"num_valid": False}) if "num_valid" in least.operands() else least


SMALL = {op: smallest(op) for op in descriptor_types()}


def form_of(descriptor, name=None):
    forms = {f.name: f for f in forms_of([e for e in examples() if e.op == descriptor.op])}
    return forms[name or descriptor.op]


def without_nan(t):
    """torch's checks also compare unwritten memory, and NaN is not equal to itself."""
    return t.float().nan_to_num().to(t.dtype) if t.is_floating_point() else t.clone()


def call_of(descriptor, name=None, seed=1):
    """The plan, its args and the op's arguments in the order of its schema."""
    plan, args = Plan.select(descriptor, target=CPU), inputs.make_args(descriptor, seed=seed)
    values = {n: getattr(args, n) for n, s in descriptor.operands().items() if s.role != "index"}
    args = dataclasses.replace(args, **{n: without_nan(t) for n, t in values.items()})
    order = form_of(descriptor, name).order
    return plan, args, [plan.handle, *(None if n == "workspace" else getattr(args, n) for n in order)]


def made_of(descriptor, args):
    """Additional arguments of the functional form: shapes that no input has, the inputs, and which results to create."""
    functional = Functional(form_of(descriptor))
    missing = {n: None if n in functional.optional else [] for n in functional.shapes}
    shapes = [missing[n] if getattr(args, n) is None else list(getattr(args, n).shape) for n in functional.shapes]
    flags = [getattr(args, n) is not None for n in functional.flags]
    inputs_of = (getattr(args, n) for n in functional.form.inputs)
    return [*shapes, *inputs_of, *flags]


def dtypes_of(descriptor, args):
    """The dtypes that do not follow from the inputs."""
    functional, fields = Functional(form_of(descriptor)), type(descriptor).model_fields
    known = {o.name for o in functional.outputs if o.says_dtype}
    tensors = {key: getattr(args, n) for n, key in functional.dtypes.items() if n not in known or key not in fields}
    return {key: t.dtype for key, t in tensors.items() if t is not None}


def op(name):
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def results(descriptor, args, name=None):
    return {n: getattr(args, n) for n in form_of(descriptor, name).results if getattr(args, n) is not None}


def valid(descriptor, args, name, tensor):
    """The rows that a call writes: the functional form allocates the others, which may have any values."""
    spec = descriptor.operands()[name]
    return tensor[: int(getattr(args, spec.valid_rows))] if spec.valid_rows else tensor


def owned(descriptor, args, name, tensor):
    """Bits, 0 where a call leaves its output unchanged."""
    free = harness_of(descriptor).unowned(descriptor, args, name)
    return bits(tensor) if free is None else bits(tensor).masked_fill(free, 0)


def with_weight(example):
    """The reference takes seconds for the largest example."""
    heavy = nbytes(list(example.operands().values())) > 2**24
    return pytest.param(example, marks=pytest.mark.heavy if heavy else (), id=f"{example.op}-{example.digest()[:6]}")


@pytest.mark.parametrize("descriptor", [with_weight(example) for example in examples()])
def test_both_forms_give_the_bits_of_run(descriptor):
    in_place = getattr(descriptor, "in_place", False) or getattr(descriptor, "accumulate", False)
    name = f"{descriptor.op}_" if in_place else descriptor.op
    plan, args, given = call_of(descriptor, name)
    _, wanted, _ = call_of(descriptor, name)
    if not in_place:
        kept = {n: getattr(args, n) for n in form_of(descriptor).inputs}
        before = {n: t.clone() for n, t in kept.items() if t is not None}
        dtype = {"o_dtype": wanted.o.dtype} if getattr(descriptor, "o_dtype", "none") != "none" and wanted.o is not None else {}
        if getattr(descriptor, "out_dtype", None) and hasattr(wanted, "out"):
            dtype |= {"out_dtype": wanted.out.dtype}
        dtype |= dtypes_of(descriptor, args)
        made = op(f"{name}_functional")(plan.handle, *made_of(descriptor, args), **dtype)
        assert all(torch.equal(t.view(torch.uint8), kept[n].view(torch.uint8)) for n, t in before.items())
    plan.run(wanted)
    op(name)(*given)
    order = form_of(descriptor, name).results
    for n, t in results(descriptor, wanted, name).items():
        assert torch.equal(*(owned(descriptor, args, n, each) for each in (getattr(args, n), t))), n
        if not in_place:
            found = made if isinstance(made, torch.Tensor) else made[order.index(n)]
            assert torch.equal(*(valid(descriptor, args, n, owned(descriptor, args, n, each)) for each in (found, t))), n


@pytest.mark.parametrize("name", sorted(SMALL))
def test_torch_checks_pass(name):
    torch.library.opcheck(op(name), call_of(SMALL[name])[2])
    plan, args, _ = call_of(SMALL[name])
    given = [plan.handle, *made_of(SMALL[name], args)]
    torch.library.opcheck(op(f"{name}_functional"), given, dtypes_of(SMALL[name], args))


def test_torch_checks_pass_in_place():
    descriptor = MergeStatesDescriptor(num_states=2, total_num_rows=3, num_heads=2, head_dim=8, dtype="f32", in_place=True)
    torch.library.opcheck(op("merge_states_"), call_of(descriptor, "merge_states_")[2])


def left_out(form):
    """Fields of the args that an op lacks: outputs in place, lists of operands, operands that no example in place has."""
    lists = {"inputs", "outputs"}
    unused = {*(f"in_{i}" for i in range(2, 8)), *(f"out_{i}" for i in range(4))}
    found = {op + suffix: left for op in ("map", "fold") for suffix, left in (("", lists), ("_", lists | unused))}
    found["fold_"] = (found["fold_"] | {"indptr"}) - {"out_1", "out_2"}
    found |= {"merge_states_": {"o", "lse", "states_indptr"}, "rotary_": {"q_out", "k_out"}, "qkv_prepare_": {"q_out"}}
    found |= {"gated_activation_": {"out", "scale"}, "norm_": {"out", "full_out", "scale"}}
    found |= {"matmul_": {"out_scale"}, "grouped_matmul_": {"out_scale"}}
    return found.get(form.name, set())


def test_an_op_has_the_operands_of_its_args_by_name_and_writes_what_its_roles_say():
    for kind in descriptor_types().values():
        own = [e for e in examples() if type(e) is kind]
        for form in forms_of(own):
            schema = op(form.name)._schema
            assert {a.name for a in schema.arguments} == {*kind.args_type.__slots__, "plan", "workspace"} - left_out(form)
            written = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
            assert written == form.written | {"workspace"}
            assert str(schema.arguments[0].type) == "SymInt" or "SymInt plan" in str(schema)


def test_an_op_has_the_tensors_of_each_problem_that_differs_by_one_choice():
    """Some choices contradict the example; those that follow count nevertheless."""
    weight = Weight(dtype="int4", group=32, scale_dtype="bf16", dequantise="exact")
    form, _ = forms_of([MatmulDescriptor(total_num_rows=5, n=40, k=96, dtype="bf16", weight_format=weight)])
    assert {"x", "weight", "weight_scale", "weight_zero", "weight_global"} <= {*form.fields}


def test_a_merge_reads_its_states_and_in_place_writes_the_first():
    own = [e for e in examples() if e.op == "merge_states"]
    plain, in_place = forms_of(own)
    assert plain.written == {"o", "lse"}
    assert in_place.written == {"states_o", "states_lse", "state_o_0", "state_lse_0"}


def test_results_can_be_left_out_and_have_another_dtype():
    from opfacade.plans.attention import BatchRaggedPrefillDescriptor

    sizes = {"batch_size": 2, "total_num_rows": 5, "total_kv_rows": 9, "num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 16}
    descriptor = BatchRaggedPrefillDescriptor(
        **sizes, head_dim_vo=8, causal=True, dtype="f32", o_dtype="bf16", return_lse=False
    )
    plan, args, _ = call_of(descriptor)
    given = [getattr(args, n) for n in form_of(descriptor).inputs]
    functional = op("ragged_prefill_functional")
    o, lse = functional(plan.handle, *given, return_lse=False, o_dtype=torch.bfloat16)
    assert (o.shape, o.dtype, lse.shape) == ((5, 4, 8), torch.bfloat16, (0,))
    with pytest.raises(OpfacadeError, match=r"o expected torch\.bfloat16, got torch\.float32"):
        functional(plan.handle, *given, return_lse=False)
    with FakeTensorMode() as mode:
        fake = [None if t is None else mode.from_tensor(t) for t in given]
        o, lse = functional(plan.handle, *fake, return_lse=False, o_dtype=torch.bfloat16)
        assert (tuple(o.shape), o.dtype, tuple(lse.shape)) == ((5, 4, 8), torch.bfloat16, (0,))


def test_errors_are_those_of_run():
    descriptor = SMALL["paged_decode"]
    plan, _, given = call_of(descriptor)
    with pytest.raises(ArgumentError, match=r"q expected .*OPF-A01"):
        op("paged_decode")(plan.handle, given[1][:1], *given[2:])
    other = Plan.select(SMALL["paged_prefill"], target=CPU)
    with pytest.raises(ArgumentError, match=r"args expected BatchPagedPrefillArgs.*OPF-A000"):
        op("paged_decode")(other.handle, *given[1:])
    with pytest.raises(GradNotSupportedError, match="q expected requires_grad=False"):
        op("paged_decode")(plan.handle, given[1].clone().requires_grad_(), *given[2:])


def test_a_plan_that_is_gone_is_an_error():
    descriptor = SMALL["paged_decode"].model_copy(update={"kv_split": 77}).revalidated()
    given = call_of(descriptor)[2]
    forget_selections()
    gc.collect()
    call_of(descriptor.model_copy(update={"kv_split": 78}).revalidated())
    with pytest.raises(PlanStateError, match="OPF-R020"):
        op("paged_decode")(*given)


def test_a_family_that_comes_later_has_its_ops():
    with mounted("toy") as toy:
        assert {"scale"} <= set(torch_ops.define_all())
        descriptor = toy.ScaleDescriptor(rows=9, width=20, dtype="f32")
        plan, args = Plan.select(descriptor, target=CPU), inputs.make_args(descriptor, seed=3)
        x = args.x.clone()
        new, peak = torch.ops.opfacade.scale_functional(plan.handle, x, args.gain)
        assert torch.equal(x, args.x)
        torch.ops.opfacade.scale(plan.handle, args.x, args.gain, args.peak)
        assert torch.equal(args.x, new)
        assert torch.equal(new, x * (args.gain * 0.5))
        assert torch.equal(peak, new.abs().amax(-1))
        assert torch.equal(args.peak, peak)
        torch.library.opcheck(torch.ops.opfacade.scale.default, (plan.handle, x, args.gain, peak))
        torch.library.opcheck(torch.ops.opfacade.scale_functional.default, (plan.handle, x, args.gain))


@pytest.mark.parametrize("op", ["quantize", "dequantize"])
def test_an_operand_that_a_choice_within_a_field_leaves_out_is_optional(op):
    kind = {"quantize": QuantizeDescriptor, "dequantize": DequantizeDescriptor}[op]
    plan = Plan.select(kind(total_num_rows=3, hidden=40, dtype="bf16", quant=Quant(scale="none")), target=Target.cpu())
    given, made = (torch.bfloat16, torch.float8_e4m3fn) if op == "quantize" else (torch.float8_e4m3fn, torch.bfloat16)
    x, out = torch.randn(3, 40).to(given), torch.empty(3, 40, dtype=made)
    getattr(torch.ops.opfacade, op)(plan.handle, x, out)
    assert torch.equal(out.float(), x.to(made).float())
    functional = getattr(torch.ops.opfacade, f"{op}_functional")(plan.handle, x, out_dtype=made)
    assert torch.equal((functional[0] if op == "quantize" else functional).float(), out.float())
