"""Subject: one descriptor with the plan under test. Checks return descriptions of errors; tests and `verify` share them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.preference import Preference
from opfacade.core.target import Target
from opfacade.plan import Plan
from opfacade.select.registry import candidates_for, configs_for
from opfacade.testing import inputs

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args

SubjectT = TypeVar("SubjectT", bound="Subject")

# Bytes on both sides of an output or a workspace that no kernel may access.
MARGIN = 4096


@dataclass(frozen=True)
class Subject:
    """A plan on a backend, and the device of its tensors."""

    descriptor: Any
    backend: str
    device: str
    forbid: tuple[str, ...] = field(default=(), kw_only=True)  # implementations that would be chosen before the one under test
    config: str = field(default="", kw_only=True)

    @property
    def plan(self) -> Plan[Any]:
        wanted = {"backend": self.backend, "forbid": self.forbid, "pin": self._pin}
        return Plan.select(self.descriptor, Preference.model_validate(wanted), self._target)

    @property
    def _pin(self) -> str | None:
        """The SKU of the config, which only a pin or a measurement selects."""
        kind: type[Descriptor[Any]] = type(self.descriptor)
        named = [c for c in configs_for(kind) if self.config and (c.backend, c.config) == (self.backend, self.config)]
        eligible = [c for c in named if c.impl not in self.forbid and not c.declines(self.descriptor, self._target)]
        if self.config and not eligible:
            raise LookupError(f"no {self.config} for {self.descriptor.op} on {self._target.arch}")
        return eligible[0].sku(self.descriptor, self._target).id if eligible else None

    @property
    def _target(self) -> Target:
        return Target.current() if self.device == "cuda" else Target.cpu()

    @property
    def declined(self) -> str:
        """The reason why the backend has no kernel for this descriptor; empty if it has one."""
        kind: type[Descriptor[Any]] = type(self.descriptor)
        reasons = [c.declines(self.descriptor, self._target) for c in candidates_for(kind) if c.backend == self.backend]
        return "" if not all(reasons) else "; ".join(str(reason) for own in reasons for reason in own) or "no candidate"

    def on(self: SubjectT, descriptor: Descriptor[Any]) -> SubjectT:
        """A subject with the same backend and device for another descriptor."""
        return replace(self, descriptor=descriptor)

    def args(self, seed: int, lengths: inputs.DrawnLengths | None = None, interleaved: bool = False) -> Any:
        return inputs.make_args(self.descriptor, seed, self.device, lengths, interleaved)

    def run(self, args: Args, workspace: Tensor | None = None) -> None:
        self.plan.run(args, workspace)

    def workspace(self, fill: int = 0xFF, offset: int = 0) -> Tensor | None:
        """A workspace of exactly the stated size, filled with one byte value, at a multiple of 256 bytes in a larger
        allocation."""
        import torch

        size = self.plan.workspace_size
        if not size:
            return None
        spare = 0 if "cuda" in str(self.device) else 256  # CPU allocations may have any alignment
        room = torch.full((size + 256 * offset + spare,), fill, dtype=torch.uint8, device=self.device)
        begin = 256 * offset + (-room.data_ptr() % 256 if spare else 0)
        return room[begin : begin + size]


def outputs(descriptor: Descriptor[Any], args: Args) -> dict[str, Tensor]:
    """Copies of the tensors that the call wrote."""
    return {name: getattr(args, name).clone() for name, spec in operands_of(descriptor).items() if spec.written}


def invariant(subject: Subject) -> bool:
    return subject.plan.precision_guarantee.batch_invariant == "composition"
