"""What decides beside a caller's preference: the SKUs that a fleet allows. A plain value, so that choosing stays pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opfacade import env, registry

if TYPE_CHECKING:
    from opfacade.sku import KernelSku


@dataclass(frozen=True, slots=True)
class Allowed:
    """The only SKU ids that may be selected, and what says so."""

    skus: frozenset[str]
    origin: str


@dataclass(frozen=True, slots=True)
class Pins:
    """allowed: no other SKU is ever selected; None where nothing is locked."""

    allowed: Allowed | None = None

    def refuses(self, sku: KernelSku) -> bool:
        return self.allowed is not None and sku.id not in self.allowed.skus


NO_PINS = Pins()


def in_force(descriptor: Any, prefer: Any, target: Any) -> Pins:
    """The pins of this process. Nothing is read where OPFACADE_REQUIRE_SKU is not set."""
    required = env.require_sku()
    return Pins(registry.manifest().required(required)) if required else NO_PINS
