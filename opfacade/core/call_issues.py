"""The full check of a call: reports every issue in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from opfacade.core.backends import ON_GPU
from opfacade.core.candidate import WORKSPACE_ALIGNMENT
from opfacade.core.checks import check, check_beside
from opfacade.core.descriptor import Descriptor
from opfacade.core.joined import Across, JoinedArgs, group_issues, tensors_of
from opfacade.core.operands import TensorSpec
from opfacade.core.setting_hints import hinted
from opfacade.core.sku import KernelSku
from opfacade.errors import Issue

if TYPE_CHECKING:
    from torch import Tensor


class Checked(Protocol):
    """The facts of a plan that its calls are checked against."""

    descriptor: Descriptor[Any]
    sku: KernelSku
    workspace_size: int
    _operands: Mapping[str, TensorSpec]


def call_issues(plan: Checked, args: object, workspace: Tensor | None) -> list[Issue]:
    wanted = plan.descriptor.args_type
    if type(args) is not wanted:
        return [Issue("OPF-A000", "args", wanted.__name__, type(args).__name__, kind="ArgumentTypeError")]
    given = {name: getattr(args, name) for name in tensors_of(wanted)}
    device_type = "cuda" if plan.sku.backend in ON_GPU else None
    issues = hinted(plan.descriptor, check(plan._operands, given, device_type, wanted.parts))
    if workspace is not None:
        faulty = {issue.argument for issue in issues}
        sound = {name: given[name] for name in plan._operands if name not in faulty}
        issues += check_beside(sound, workspace, plan.workspace_size, WORKSPACE_ALIGNMENT)
    return issues + (group_issues(cast(Across, plan.descriptor), args) if isinstance(args, JoinedArgs) else [])
