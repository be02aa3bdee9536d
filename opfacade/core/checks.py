"""Checks the tensors of a call against its operands: reads metadata, never elements, and reports every issue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from opfacade.core.overlap import extent, overlaps
from opfacade.core.strides import View
from opfacade.errors import Issue, UnsupportedError

if TYPE_CHECKING:
    import torch

    from opfacade.core.forms import Parts
from opfacade.core.dtypes import torch_dtype
from opfacade.core.operands import TensorSpec, room

_UNWRAPPED = {  # hint by wrapper class; other wrappers get a general hint
    "DTensor": "Use to_local(), or call it within the forward of the sharded module, where its parameters are whole.",
    "AsyncCollectiveTensor": "Use wait().",
    "AffineQuantizedTensor": "Use dequantize(), or the product of quantised operands.",
}


def check(
    operands: Mapping[str, TensorSpec],
    given: Mapping[str, Any],
    device_type: str | None,
    parts: Mapping[str, Parts] = MappingProxyType({}),
) -> list[Issue]:
    """Returns every issue of the values `given`. device_type: "cuda", "cpu", or None for any; all operands must be on the
    device of the first, except those whose rules state another. parts: fields of the args that stand for several operands."""
    issues: list[Issue] = []
    tensors: dict[str, torch.Tensor] = {}
    refused = _refused(operands, given, parts)
    unnamed = {member for name in refused for member in parts[name].names}
    for name, value in given.items():
        if name in refused:
            issues.append(refused[name])
            continue
        spec = operands.get(name)
        if spec is None:
            if value is not None:
                expected, got = "None for this descriptor", type(value).__name__
                issues.append(Issue("OPF-A001", name, expected, got, kind="ArgumentTypeError"))
            continue
        if value is None and name in unnamed:
            continue
        kind_issue = _kind(name, value)
        if kind_issue is not None:
            issues.append(kind_issue)
            continue
        tensors[name] = value
        issues += _one(name, spec, value)
    issues += _devices(operands, tensors, device_type)
    faulty = {issue.argument for issue in issues}
    sound = {name: tensor for name, tensor in tensors.items() if name not in faulty}
    return issues + _ruled(operands, sound) + _aliases(operands, sound)


def _refused(operands: Mapping[str, TensorSpec], given: Mapping[str, Any], parts: Mapping[str, Parts]) -> dict[str, Issue]:
    """The issues, by field, of values that no parts took. A field that is itself an operand gets the usual check."""
    found = {}
    for name, some in parts.items():
        value = given.get(name)
        if value is not None and (name not in operands or name in some.names):
            issue = some.refusal(name, value)
            if issue is not None:
                found[name] = issue
    return found


def _ruled(operands: Mapping[str, TensorSpec], sound: Mapping[str, torch.Tensor]) -> list[Issue]:
    """The issues that the families' own rules find."""
    first = next((tensor for name, tensor in sound.items() if not operands[name].elsewhere), None)
    if first is None:
        return []
    with_rules = [(name, tensor, rules) for name, tensor in sound.items() if (rules := operands[name].rules) is not None]
    return [issue for name, tensor, rules in with_rules for issue in rules.issues(name, tensor, first)]


def _kind(name: str, value: object) -> Issue | None:
    """Checks that a value is a plain strided tensor."""
    import torch

    if isinstance(value, (list, tuple)):
        got = f"a {type(value).__name__} of {len(value)}"
        hint = "This operand takes no list of tensors."
        return Issue("OPF-A007", name, "a torch.Tensor", got, hint, kind="ArgumentTypeError")
    if not isinstance(value, torch.Tensor):
        got = "None" if value is None else type(value).__name__
        return Issue("OPF-A002", name, "a torch.Tensor", got, kind="ArgumentTypeError")
    if not is_plain(value):
        kind = type(value).__name__
        hint = _UNWRAPPED.get(kind, "Unwrap it first.")
        return Issue("OPF-A003", name, "a plain torch.Tensor", kind, hint, kind="UnsupportedError")
    form = "nested" if value.is_nested else "quantized" if value.is_quantized else str(value.layout)
    if form != str(torch.strided):
        return Issue("OPF-A004", name, "a strided dense tensor", form, kind="LayoutError")
    if value.is_conj() or value.is_neg():
        return Issue("OPF-A005", name, "no conjugate or negative bit", "one set", "Call resolve_conj().", kind="LayoutError")
    if needs_gradient(value):
        hint = "Call .detach(), or run under torch.no_grad(): there is no backward."
        return Issue("OPF-A006", name, "requires_grad=False", "requires_grad=True", hint, kind="GradNotSupportedError")
    return None


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is neither a wrapper subclass nor inside a functorch transform."""
    import torch

    return plain_type(type(tensor)) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def plain_type(kind: type) -> bool:
    """Whether the value is a Tensor, a Parameter, or a fake tensor. torch.compile traces this check."""
    import torch

    return kind is torch.Tensor or kind is torch.nn.Parameter or is_traced(kind)


def is_traced(kind: type) -> bool:
    """Whether the tensor is fake: it has metadata and no memory."""
    return kind.__name__ == "FakeTensor" and kind.__module__.startswith("torch.")


def needs_gradient(tensor: torch.Tensor) -> bool:
    """Whether torch records a gradient for the tensor now; under no_grad it records none, even for a parameter."""
    import torch

    return tensor.requires_grad and torch.is_grad_enabled()


def has_memory(tensor: torch.Tensor) -> bool:
    return tensor.device.type != "meta" and not is_traced(type(tensor))


def require_memory(op: str, tensor: torch.Tensor) -> None:
    """Fake and meta tensors pass this check: they exist so that calls can be checked without memory."""
    if not has_memory(tensor):
        message = f"{op}.run: tensors without memory ({tensor.device}) can be checked but not run. [OPF-R001]"
        raise UnsupportedError(message, code="OPF-R001", op=op, stage="run")


def _one(name: str, spec: TensorSpec, tensor: torch.Tensor) -> list[Issue]:
    issues = []
    if tensor.dtype != torch_dtype(spec.dtype):
        issues.append(
            Issue("OPF-A010", name, str(torch_dtype(spec.dtype)), str(tensor.dtype), _cast(name, spec), kind="DTypeError")
        )
    shape = tuple(tensor.shape)
    if len(shape) != len(spec.shape) or any(d.size not in (None, n) for d, n in zip(spec.shape, shape, strict=True)):
        wanted = f"shape [{', '.join(map(str, spec.shape))}]"
        return [*issues, Issue("OPF-A011", name, wanted, str(list(shape)), _order(spec, shape), kind="ShapeError")]
    if tensor.numel() == 0:
        return issues
    issues += _strides(name, spec, tensor)
    if has_memory(tensor):
        issues += _memory(name, spec, tensor)
    return issues


def _cast(name: str, spec: TensorSpec) -> str:
    """The hint that an error gives for a tensor of another element type."""
    if spec.written:
        return f"Allocate {name} with dtype={torch_dtype(spec.dtype)}, or select with another element type."
    if spec.dtype == "i32":
        return f"Use {name}.to(torch.int32); values are never narrowed in silence."
    return f"Use {name}.to({torch_dtype(spec.dtype)}), or select with another element type where the descriptor has one."


def _order(spec: TensorSpec, shape: tuple[int, ...]) -> str:
    """The two neighbouring axes that are exchanged, if nothing else is wrong with the shape."""
    sizes = [dim.size for dim in spec.shape]
    for i in range(len(shape) - 1 if len(shape) == len(sizes) else 0):
        swapped = [*shape[:i], shape[i + 1], shape[i], *shape[i + 2 :]]
        if all(size in (None, n) for size, n in zip(sizes, swapped, strict=True)):
            first, second = spec.shape[i].name, spec.shape[i + 1].name
            tokens = spec.exchanged if spec.paged is not None and spec.paged[1] in (i, i + 1) else ""
            return tokens or f"Its axes {first} and {second} are exchanged."
    return ""


def _strides(name: str, spec: TensorSpec, tensor: torch.Tensor) -> list[Issue]:
    view = View([dim.name for dim in spec.shape], tensor.shape, tensor.stride(), tensor.element_size())
    broken = spec.strides.broken(view)
    if broken is None:
        return []
    hint = f"Use {name}.contiguous()." if broken.copy_helps and not spec.written else broken.hint
    return [Issue(broken.code, name, broken.expected, f"strides {tensor.stride()}", hint, kind="LayoutError")]


def _memory(name: str, spec: TensorSpec, tensor: torch.Tensor) -> list[Issue]:
    needed, available = extent(tensor.shape, tensor.stride()) * tensor.element_size(), room(tensor)
    if needed > available:
        return [Issue("OPF-A024", name, f"{needed} bytes of storage", f"{available}", kind="LayoutError")]
    off = tensor.data_ptr() % spec.alignment
    if off:
        expected = f"an address aligned to {spec.alignment} bytes"
        return [Issue("OPF-A025", name, expected, f"address mod {spec.alignment} = {off}", kind="AlignmentError")]
    return []


def _devices(operands: Mapping[str, TensorSpec], tensors: Mapping[str, torch.Tensor], device_type: str | None) -> list[Issue]:
    first = next((name for name in tensors if not operands[name].elsewhere), None)
    if first is None:
        return []
    leader = tensors[first]
    issues = []
    if device_type is not None and leader.device.type not in (device_type, "meta"):
        hint = "Select a plan for the device the tensors are on."
        issues.append(Issue("OPF-A030", first, f"a {device_type} tensor", str(leader.device), hint, kind="DeviceMismatchError"))
    for name, tensor in tensors.items():
        if tensor.device != leader.device and not operands[name].elsewhere:
            expected = f"the device of {first}, {leader.device}"
            issues.append(Issue("OPF-A031", name, expected, str(tensor.device), kind="DeviceMismatchError"))
        elif has_memory(tensor) != has_memory(leader):
            expected = f"a tensor {_memory_of(leader)}, as {first}"
            issues.append(Issue("OPF-A032", name, expected, f"one {_memory_of(tensor)}", kind="DeviceMismatchError"))
    return issues


def _memory_of(tensor: torch.Tensor) -> str:
    return "with memory" if has_memory(tensor) else "without memory"


def _aliases(operands: Mapping[str, TensorSpec], tensors: Mapping[str, torch.Tensor]) -> list[Issue]:
    """A written operand must not overlap any other operand. Operands that are only read may overlap."""
    live = [(n, t) for n, t in tensors.items() if t.numel() and has_memory(t)]
    issues = []
    for i, (name, tensor) in enumerate(live):
        for other, neighbour in live[i + 1 :]:
            if (operands[name].written or operands[other].written) and overlaps(tensor, neighbour):
                at_fault, victim = (name, other) if operands[name].written else (other, name)
                hint = f"Select with in_place=True to overwrite {victim}." if operands[at_fault].replaces == victim else ""
                expected = f"memory separate from {victim}"
                issues.append(Issue("OPF-A040", at_fault, expected, "overlap", hint, kind="AliasError"))
    return issues


def check_workspace(workspace: object, needed: int, like: torch.Tensor | None, alignment: int) -> list[Issue]:
    """A workspace is a contiguous uint8 tensor of at least `needed` bytes, on the device and in the kind of memory of the
    call."""
    import torch

    if workspace is None:
        return []
    if not isinstance(workspace, torch.Tensor):
        got = type(workspace).__name__
        hint = "Pass workspace.of(plan)." if got == "Workspace" else ""
        return [Issue("OPF-A050", "workspace", "a uint8 tensor or None", got, hint, kind="WorkspaceError")]
    kind_issue = _kind("workspace", workspace)
    if kind_issue is not None:
        return [replace(kind_issue, kind="WorkspaceError")]
    if workspace.dtype != torch.uint8 or workspace.dim() != 1 or not workspace.is_contiguous():
        got = f"{workspace.dtype} of shape {list(workspace.shape)}"
        return [Issue("OPF-A051", "workspace", "a contiguous one-dimensional uint8 tensor", got, kind="WorkspaceError")]
    if like is not None and workspace.device != like.device:
        return [Issue("OPF-A052", "workspace", f"device {like.device}", str(workspace.device), kind="WorkspaceError")]
    if workspace.numel() < needed:
        return [Issue("OPF-A053", "workspace", f"at least {needed} bytes", f"{workspace.numel()}", kind="WorkspaceError")]
    return _workspace_memory(workspace, needed, like, alignment)


def _workspace_memory(workspace: torch.Tensor, needed: int, like: torch.Tensor | None, alignment: int) -> list[Issue]:
    if like is not None and has_memory(workspace) != has_memory(like):
        expected, got = f"a tensor {_memory_of(like)}, as the operands", f"one {_memory_of(workspace)}"
        return [Issue("OPF-A056", "workspace", expected, got, kind="WorkspaceError")]
    if not has_memory(workspace):  # assumes an aligned storage, as every GPU allocation of torch has
        return _misaligned("storage_offset", int(workspace.storage_offset()), alignment) if needed else []
    size, available = workspace.numel(), room(workspace)
    if size > available:
        return [Issue("OPF-A055", "workspace", f"{size} bytes of storage", f"{available}", kind="WorkspaceError")]
    return _misaligned("address", workspace.data_ptr(), alignment) if needed else []


def _misaligned(place: str, at: int, alignment: int) -> list[Issue]:
    """The issue of a workspace with a misaligned first byte, given its address or its offset in the storage."""
    if at % alignment:
        got = f"{place} mod {alignment} = {at % alignment}"
        return [Issue("OPF-A054", "workspace", f"alignment to {alignment} bytes", got, kind="WorkspaceError")]
    return []


def check_beside(sound: Mapping[str, torch.Tensor], workspace: torch.Tensor | None, needed: int, alignment: int) -> list[Issue]:
    """Issues of a workspace; `operands` are the valid operands of the call."""
    issues = check_workspace(workspace, needed, next(iter(sound.values()), None), alignment)
    return issues or ([] if workspace is None else _workspace_alias(sound, workspace))


def _workspace_alias(sound: Mapping[str, torch.Tensor], workspace: torch.Tensor) -> list[Issue]:
    """The first operand that shares memory with the workspace."""
    for name, tensor in sound.items():
        if tensor.numel() and workspace.numel() and has_memory(tensor) and overlaps(workspace, tensor):
            return [Issue("OPF-A041", "workspace", f"memory separate from {name}", "overlap", kind="AliasError")]
    return []
