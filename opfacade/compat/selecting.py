"""Plans by the parameters of a call: a call with the same parameters as an earlier call creates and validates no descriptor."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from opfacade import Plan, Preference, Target
from opfacade.base.fork_lock import ForkLock

if TYPE_CHECKING:
    import torch

    from opfacade.core.descriptor import Descriptor

_MOST = 4096
_descriptors: dict[Hashable, Descriptor[Any]] = {}
_adding = ForkLock()
_preference: ContextVar[Preference | None] = ContextVar("opfacade_compat_preference", default=None)


@contextmanager
def preferring(preference: Preference | None) -> Iterator[None]:
    """Sets the preference that the adapters pass to `Plan.select` within the block, in this thread or task.

    `with preferring(Preference(backend="cuda")):` raises UnsupportedError for a problem that no kernel supports, instead of
    running it on the reference."""
    token = _preference.set(preference)
    try:
        yield
    finally:
        _preference.reset(token)


def preferred() -> Preference | None:
    """The current preference, set by the innermost `preferring` of this thread or task."""
    return _preference.get()


def plan_for(make: Callable[[Any], Descriptor[Any]], facts: Hashable, device: torch.device) -> Plan[Any]:
    """The plan for `make(facts)`, which is called once for equal facts. Raises the errors of the descriptor and of
    `Plan.select`."""
    key = (make, facts)
    descriptor = _descriptors.get(key)
    if descriptor is None:
        descriptor = make(facts)
        with _adding:
            if len(_descriptors) >= _MOST:
                _descriptors.pop(next(iter(_descriptors)))
            _descriptors[key] = descriptor
    return Plan.select(descriptor, _preference.get(), target_of(device))


@lru_cache(maxsize=64)
def target_of(device: torch.device) -> Target:
    """The target of the device of a call's tensors, which may differ from the current device."""
    import torch

    if device.type != "cuda":
        return Target.cpu()
    with torch.cuda.device(device):
        return Target.current()


def rounded_up(bound: int) -> int:
    """Rounds a length up to a bound with three significant bits, at most 1.25 times the length, so that growing lengths need
    few descriptors."""
    shift = max(0, bound.bit_length() - 3)
    return -(-bound >> shift) << shift
