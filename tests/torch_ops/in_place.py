"""Functions that read memory before and after an op that overwrites an operand, and the operands of every such op."""

from dataclasses import dataclass

import torch
from torch._dynamo.utils import detect_fake_mode
from torch._inductor import compile_fx
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._inductor.virtualized import V

from opfacade import Plan
from opfacade.core.operands import nbytes
from opfacade.errors import DescriptorError
from opfacade.select.registry import examples
from opfacade.testing import inputs
from opfacade.torch_ops.forms import all_forms


@dataclass
class Call:
    """A call of an op that overwrites `name`. read: an operand of the same shape and dtype that it only reads, or None."""

    op: object
    handle: int
    order: tuple
    name: str
    read: str | None

    def __call__(self, values):
        self.op(self.handle, *(values.get(n) for n in self.order))


def between(call, values):
    """Returns a value that is read between two changes, and a copy of the last one."""
    call(values)
    read = values[call.name].clone()
    call(values)
    return read, values[call.name].clone()


def before(call, values):
    read = values[call.name].clone()
    call(values)
    return read, values[call.name].clone()


def changed_by_torch(call, values):
    """Copies before and after a change by another op."""
    call(values)
    first = values[call.name].clone()
    values[call.name].zero_()
    second = values[call.name].clone()
    call(values)
    return first, second


def own_read(call, values):
    """The op reads a copy of what it overwrites, twice."""
    for _ in range(2):
        call(values | {call.read: values[call.name].clone()})


def view(call, values):
    """The overwritten tensor is a view of an argument."""
    part = values | {call.name: half(values, 1, values[call.name].shape)}
    call(part)
    read = values["buffer"].clone(), part[call.name].clone()
    call(part)
    return *read, values["buffer"].clone()


def half(values, at, shape):
    """A tensor of a shape in one half of the buffer, at an aligned address."""
    return values["buffer"][at, : shape.numel()].view(shape)


def made(call, values):
    """The overwritten tensor is not an input of the function."""
    own = values | {call.name: values[call.name].clone()}
    call(own)
    read = own[call.name].clone()
    call(own)
    return read, own[call.name]


def stored(call, values):
    """A value between two changes, and the value before them, become inputs of other ops."""
    half(values, 0, values[call.name].shape).copy_(values[call.name])
    call(values)
    values["other"].copy_(values[call.name])
    call(values)


def returned(call, values):
    """Views of the overwritten tensor share its memory."""
    call(values)
    return values[call.name], values[call.name][-1:], values[call.name].transpose(0, -1)[-1:]


def computed(call, values):
    """Results computed from values before and between two changes are stored elsewhere."""
    first = values[call.name] * 1
    call(values)
    values["other"].copy_(first)
    second = values[call.name] * 1
    call(values)
    half(values, 0, values[call.name].shape).copy_(second)


PATTERNS = (computed, between, before, changed_by_torch, own_read, view, made, stored, returned)


def passes(graph, given):
    """Inductor's passes over graphs without its code generation: the resulting graph runs node by node."""
    return compile_fx.compile_fx(graph, given, inner_compile=interpreted)


def interpreted(graph, given, **_):
    with V.set_fake_mode(detect_fake_mode(given)):
        post_grad_passes(graph, is_inference=True)

    def run(values):
        found = graph(*values)
        values.clear()
        return found

    run._boxed_call = True
    return run


def problems(form):
    """The smallest problem of a form for each operand that it overwrites."""
    own = [d for e in examples() if isinstance(e, form.kind) for d in _either_way(e, form)]
    names = sorted({n for p in form.problems for n, spec in p.items() if spec.role == "inout"})
    return [(min((d for d in own if _overwrites(d, n)), key=_cost), n) for n in names]


def _either_way(example, form):
    """The example, changed so that it fits the form and overwrites more."""
    fields = type(example).model_fields
    flag = "in_place" in fields and fields["in_place"].annotation is bool
    wanted = {"in_place": form.is_in_place} if flag else {}
    wanted |= {"num_valid": False} if "num_valid" in fields else {}
    wanted |= {"residual": True} if "residual" in fields and fields["residual"].annotation is bool else {}
    try:
        yield type(example).model_validate({n: getattr(example, n) for n in fields} | wanted)
    except DescriptorError:
        return  # in_place contradicts another field


def _overwrites(descriptor, name):
    spec = descriptor.operands().get(name)
    return spec is not None and spec.role == "inout"


def _cost(descriptor):
    specs = descriptor.operands().values()
    return any(spec.dtype.startswith("f8") for spec in specs), nbytes(list(specs))


def overwriting():
    """Every form of an op with every operand that it overwrites."""
    return [(form, *problem) for form in all_forms() for problem in problems(form)]


def _plain(tensor):
    """Without NaN, which is not equal to itself."""
    return tensor.float().nan_to_num().to(tensor.dtype) if tensor.is_floating_point() else tensor


def prepared(form, descriptor, name, preference=None, device="cpu"):
    """The plan, the call, and a function that makes its operands."""
    from opfacade import Preference

    plan = Plan.select(descriptor, preference or Preference(backend="reference"))
    specs = descriptor.operands()
    alike = [n for n, s in specs.items() if s.role == "in" and (s.shape, s.dtype) == (specs[name].shape, specs[name].dtype)]
    call = Call(getattr(torch.ops.opfacade, form.name), plan.handle, form.order, name, alike[0] if alike else None)

    def values():
        args = inputs.make_args(descriptor, seed=5, device=device)
        found = {n: _plain(t) for n in specs if (t := getattr(args, n)) is not None}
        target = found[name]
        buffer = target.new_zeros(2, -(-target.numel() // 16) * 16)
        buffer[1, : target.numel()] = target.flatten()
        return found | {"buffer": buffer, "other": torch.zeros_like(target)}

    return plan, call, values


def outcome(function, values):
    """Results and operands after a call, as bytes; and which results share memory with which operands."""
    with torch.no_grad():
        found = function(values)
    results = [] if found is None else list(found)
    storages = {n: t.untyped_storage().data_ptr() for n, t in values.items()}
    shared = [[n for n, at in storages.items() if at == r.untyped_storage().data_ptr()] for r in results]
    return [t.contiguous().view(-1).view(torch.uint8).clone() for t in (*results, *values.values())], shared
