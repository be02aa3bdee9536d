"""Level indices on a GPU, for bounds on the values of operands: a kernel checks the values before each run of the operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opfacade.base.capture import capturing
from opfacade.core.sku import KernelSku
from opfacade.errors import DeviceError
from opfacade.validation.device import Channels
from opfacade.validation.rules import Finding
from opfacade.validation.values import Bounded, Outside, error_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from opfacade.core.candidate import Launcher
    from opfacade.core.descriptor import Args

_HIGH, _LOW = 2**32, 2**32 - 1


class DeviceValueGuard:
    """Launches a check of each bounded operand before the operator, on the same stream. The operator gets copies in which wrong
    values, and values of invalid rows, are replaced by the smallest valid value."""

    def __init__(self, op: str, bounded: Sequence[Bounded], sku: KernelSku, allow_build: bool) -> None:
        self._op, self._bounded, self._sku, self._allow_build = op, bounded, sku, allow_build
        self._channels = Channels(op, "the value check")

    def check(self) -> None:
        found = self._channels.drain()
        if found:
            raise error_of(self._op, [self._outside(one) for one in found])

    def _outside(self, record: Finding) -> Outside:
        """Converts a record. Each call launches one check per operand, so the record's call number is divided by their count.
        The 64-bit value is stored in two fields of the record."""
        value = record.limit * _HIGH | record.value & _LOW
        return Outside(self._bounded[record.place], record.position, value, record.call // len(self._bounded))

    def wrap(self, launch: Launcher) -> Launcher:
        from opfacade import jit
        from opfacade.jit.spec import JitSpec

        spec = JitSpec.of("value_check", "validation/value_check", self._sku.arch)
        module = jit.load(spec, allow_build=self._allow_build)
        self._channels.prepare(module)

        def guarded(args: Any, workspace: Tensor | None) -> None:
            self.check()
            launch(replace(args, **self._judged(module.run, args)), workspace)

        return guarded

    def _judged(self, run: Callable[..., None], args: Args) -> dict[str, Tensor]:
        """The checked copies. The check kernel fills them later, in stream order."""
        import torch

        trusted: dict[str, Tensor] = {}
        for place, one in enumerate(self._bounded):
            given = getattr(args, one.name)
            safe = None if one.written else torch.empty(given.shape, dtype=given.dtype, device=given.device)
            channel = self._channels.on(given.device.index)
            channel.captured = channel.captured or capturing(given.device)
            try:
                bounds = one.first, one.end(args), one.axis, place
                run(given, safe, one.valid(args), channel.state, channel.memory.data_ptr(), *bounds)
            except RuntimeError as error:
                message = f"{self._op}.run: value check: {error} [OPF-R010]"
                raise DeviceError(message, code="OPF-R010", op=self._op, stage="run") from error
            if safe is not None:
                trusted[one.name] = safe
        return trusted
