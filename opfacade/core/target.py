"""Target: the machine a plan is selected for. It is a plain value, so selection needs no GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from opfacade.base import notices
from opfacade.base.short_repr import shown
from opfacade.core.construction import Spelled
from opfacade.core.links import NO_LINKS, Links
from opfacade.errors import Issue, OpfacadeError, TargetWarning, from_issues

# SM count and maximum opt-in shared memory per block, in bytes, of the most common GPU of each architecture. Shared memory is
# from `cuda/__device/arch_traits.h` of CCCL 13.5; 101 is the name of 110 before CUDA 13. 121 is the GB10 of a DGX Spark. NVIDIA
# documents no product with 88 or 107: they have the SM count of the preceding entry.
_USUAL = {
    75: (40, 65536),
    80: (108, 166912),
    86: (84, 101376),
    87: (16, 166912),
    88: (16, 101376),
    89: (128, 101376),
    90: (132, 232448),
    100: (148, 232448),
    101: (20, 232448),
    103: (160, 232448),
    107: (160, 232448),
    110: (20, 232448),
    120: (170, 101376),
    121: (48, 101376),
}
_DEVICES = {"a100": 80, "l40s": 89, "h100": 90, "h200": 90, "hopper": 90, "b200": 100, "blackwell": 100, "gb10": 121}
NEWEST_TUNED = 90  # the newest architecture on which kernels were measured
_FIRST_WITH_FEATURES = 90  # from here on, an architecture without "a" lacks instructions that its fastest kernels need
_ARCH = re.compile(r"(?:cpu|sm_([0-9]{2,3})([af]?))")


class _Targets(Spelled):
    missing_hint = 'Use Target.current(), Target.cpu() or Target.parse("sm_90a").'


@lru_cache(maxsize=64)
def _version(arch: str) -> int:
    match = _ARCH.fullmatch(arch)
    return int(match.group(1) or 0) if match else 0


@dataclass(frozen=True)
class Target(metaclass=_Targets):
    """arch ("cpu", "sm_80", "sm_90a", ...), SM count, shared memory per block in bytes (opt-in maximum), and the links to the
    other GPUs of its group (default: none)."""

    arch: str
    sm_count: int = 0
    max_shared_memory: int = 0
    links: Links = NO_LINKS

    def __post_init__(self) -> None:
        if not isinstance(self.arch, str) or not _ARCH.fullmatch(self.arch):
            raise _bad("arch", '"cpu" or "sm_NN[a|f]"', self.arch)
        for name in ("sm_count", "max_shared_memory"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value < 2**31:
                raise _bad(name, "an int in [0, 2^31)", value)
        if not isinstance(self.links, Links):
            raise _bad("links", "a Links", self.links)
        if not self.is_cpu and self.sm_count < 1:
            raise _bad("sm_count", "at least 1 for a GPU", self.sm_count)

    def __hash__(self) -> int:
        """Hashes only the arch: few targets have the same arch, and every selection hashes its target many times."""
        return hash(self.arch)

    @property
    def is_cpu(self) -> bool:
        return self.arch == "cpu"

    @property
    def sm_version(self) -> int:
        """90 for sm_90 and sm_90a; 0 for the CPU."""
        return _version(self.arch)

    @staticmethod
    def cpu() -> Target:
        return _CPU

    @staticmethod
    def parse(text: str) -> Target:
        """The most common GPU of an architecture: `Target.parse("sm_90a")` is an H200 or H100 with 132 SMs.

        Raises DescriptorError for other texts; warns once (TargetWarning) if the "a" that `Target.current` would add is
        missing.
        """
        match = _ARCH.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise _bad("arch", '"cpu" or "sm_NN[a|f]"', text, _meant(text))
        if text == "cpu":
            return _CPU
        version, features = int(match.group(1)), match.group(2)
        if version >= _FIRST_WITH_FEATURES and not features:
            lacks = (
                "has no kernel that needs wgmma"
                if version == NEWEST_TUNED
                else "is not a device: devices and their SKUs have the letter"
            )
            what = f'Target.parse("{text}"): did you mean {text}a? {text} {lacks}.'
            notices.tell_once(what, what, TargetWarning)
        sm_count, shared = _USUAL.get(version, (1, 49152))
        return Target(text, sm_count, shared)

    @staticmethod
    def current() -> Target:
        """The current CUDA device, else the CPU."""
        if not _has_cuda():
            return _CPU
        import torch

        return _of_device(torch.cuda.current_device())


def _meant(text: object) -> str:
    """A hint for "sm90", "90", "H100" and the like."""
    number = re.fullmatch(r"(?:sm|compute)?[ _-]?([0-9]{1,2})\.?([0-9])[af]?", text.lower()) if isinstance(text, str) else None
    version = int(number[1] + number[2]) if number else _DEVICES.get(str(text).lower(), 0)
    return f'Use "sm_{version}{"a" if version >= _FIRST_WITH_FEATURES else ""}".' if version in _USUAL else ""


def _bad(field: str, expected: str, got: object, hint: str = "") -> OpfacadeError:
    issue = Issue("OPF-D010", field, expected, shown(got), hint, kind="DescriptorError")
    return from_issues("Target", "", [issue])


_CPU = Target("cpu")


@lru_cache(maxsize=1)
def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@lru_cache(maxsize=64)
def _of_device(index: int) -> Target:
    import torch

    found = torch.cuda.get_device_properties(index)
    version = found.major * 10 + found.minor
    suffix = "a" if version >= 90 else ""
    shared = int(getattr(found, "shared_memory_per_block_optin", _USUAL.get(version, (1, 49152))[1]))
    return Target(f"sm_{version}{suffix}", found.multi_processor_count, shared)


def of_device(index: int) -> Target:
    """The target of one CUDA device of this machine."""
    return _of_device(index)
