"""The parts of plans, descriptors and SKUs that telemetry reads."""

from __future__ import annotations

from typing import Protocol


class Identified(Protocol):
    """A SKU, as telemetry knows it."""

    @property
    def id(self) -> str: ...
    @property
    def backend(self) -> str: ...


class Named(Protocol):
    """A descriptor, as telemetry knows it."""

    @property
    def op(self) -> str: ...


class Watched(Protocol):
    """A plan, as telemetry knows it."""

    @property
    def sku(self) -> Identified: ...
    @property
    def descriptor(self) -> Named: ...
