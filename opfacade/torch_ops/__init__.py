"""Every op as a torch op, for torch.compile and other tracers: `torch.ops.opfacade.<op>(plan.handle, ...)`.

    import opfacade.torch_ops
    torch.ops.opfacade.<op>(plan.handle, *inputs, *outputs, workspace, name=optional, ...)
    outputs = torch.ops.opfacade.<op>_functional(plan.handle, *inputs, name=optional, ...)

`<op>` writes the given outputs. `<op>_functional` creates the outputs, and returns a changed copy of each operand that the op
overwrites. `<op>_` exists if the op has a field `in_place`. Operands have the names of the args: required operands come first,
then outputs and `workspace`, then the others. An output that the plan does not write (`return_<name>=False`) is an empty
tensor. The functional form has an argument `<name>_dtype` for each output whose dtype can differ from the inputs, and an
argument for each shape that the inputs do not determine.

An op over several ranks takes `group=`, the name of a Group; its functional form serves one rank.

The plan is passed as a number (SymInt), so one compiled graph serves every plan of an op. Pass the plan or `plan.handle` to the
compiled function as an argument, because torch.compile makes a separate graph for each value of an int attribute of a module.
The number does not keep the plan alive; the number of a deleted plan raises PlanStateError. All other errors are those of
`Plan.run`. There is no backward: an operand that requires a gradient raises GradNotSupportedError, when run or traced."""

from __future__ import annotations

from opfacade.torch_ops.forms import all_forms
from opfacade.torch_ops.library import define, defined

__all__ = ["define_all", "defined"]


def define_all() -> tuple[str, ...]:
    """Defines the ops of new families, and returns the names of all ops."""
    for form in all_forms():
        define(form)
    return defined()


define_all()
