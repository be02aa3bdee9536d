"""Faults in what an operand, a list of operands or a workspace may be: in Python, in bindings and in kernels."""

from tests.mutation.mutant import CALLS, MEMO, cpu

CHECKS = "tests/test_operands.py"

OPERAND_FAULTS = (
    cpu(
        "workspace: a storage that shrank is not seen",
        "opfacade/operands.py",
        "if size > available:",
        "if size < available - size:",
        f"{CHECKS} {CALLS}",
    ),
    cpu(
        "memo: a workspace whose storage shrank is still the one that was sound",
        "opfacade/memo.py",
        "min(workspace.numel(), room(workspace))",
        "workspace.numel()",
        MEMO,
    ),
    cpu(
        "workspace: what is no dense tensor is not looked for",
        "opfacade/operands.py",
        '    kind_issue = _kind("workspace", workspace)\n    if kind_issue is not None:\n        return [replace(kind_issue, kind="WorkspaceError")]\n',
        "",
        f"{CHECKS} {CALLS}",
    ),
    cpu(
        "can_implement: a fake tensor passes beside a real one",
        "opfacade/operands.py",
        "        elif has_memory(tensor) != has_memory(leader):",
        "        elif False:",
        f"{CHECKS} {CALLS}",
    ),
)
