"""Fault: an error in a node of a program, with its path. The descriptor that contains the program reports the path."""

from __future__ import annotations

from opfacade.base.short_repr import shown
from opfacade.errors import DescriptorError, Issue


class Fault(DescriptorError):
    """path: from the program to the node, such as `.outputs.0.value.args.1`. expected, got: the valid and the actual value."""

    def __init__(self, path: str, expected: str, got: object, hint: str = "") -> None:
        self.path, self.expected, self.got, self.hint_text = path, expected, got, hint
        told = got if isinstance(got, str) else shown(got)
        issue = Issue("OPF-D007", path.lstrip(".") or "expression", expected, told[:200], hint, kind="DescriptorError")
        super().__init__(f"program.descriptor: {issue}", code=issue.code, op="program", stage="descriptor", issues=[issue])

    def under(self, path: str) -> Fault:
        """The same fault with a prefix before its path."""
        return Fault(path + self.path, self.expected, self.got, self.hint_text)

    def __reduce__(self) -> tuple[type[Fault], tuple[object, ...]]:
        return Fault, (self.path, self.expected, self.got if isinstance(self.got, str) else shown(self.got), self.hint_text)
