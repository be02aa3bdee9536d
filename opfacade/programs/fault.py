"""Fault: what is wrong with a node of a program, and where. A descriptor that holds the program names the path."""

from __future__ import annotations

from opfacade.base.short_repr import shown
from opfacade.errors import DescriptorError, Issue


class Fault(DescriptorError):
    """path: from the program to the node, such as `.outputs.0.value.args.1`; expected, got: what it should be and is."""

    def __init__(self, path: str, expected: str, got: object, hint: str = "") -> None:
        self.path, self.expected, self.got, self.hint_text = path, expected, got, hint
        told = got if isinstance(got, str) else shown(got)
        issue = Issue("OPF-D007", path.lstrip(".") or "expression", expected, told[:200], hint, kind="DescriptorError")
        super().__init__(f"program.descriptor: {issue}", code=issue.code, op="program", stage="descriptor", issues=[issue])

    def under(self, path: str) -> Fault:
        """The same fault of a node that lies deeper."""
        return Fault(path + self.path, self.expected, self.got, self.hint_text)

    def __reduce__(self) -> tuple[type[Fault], tuple[object, ...]]:
        return Fault, (self.path, self.expected, self.got if isinstance(self.got, str) else shown(self.got), self.hint_text)
