"""Compiles only the device code and checks it as a build does, without binding, cache or GPU."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from opfacade.backends.cuda import ptxas
from opfacade.errors import CompileError
from opfacade.jit import cache, codegen, rendered, runner, sass, toolchain
from opfacade.jit.build import CUBIN, plan_steps, refuse_old_ptxas, write_sources
from opfacade.jit.findings import SassFinding
from opfacade.jit.spec import JitSpec
from opfacade.jit.toolchain import Toolchain
from opfacade.plan import forget_selections

_OLDEST, _FEATURES = 80, 90  # from sm_90 on, architectures of devices end in "a"
_SECONDS = 300.0
_ERROR = re.compile(r"^.*(?:\berror\b|\bfatal\b|ptxas fatal).*$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Built:
    """One source: the error in a line if it failed, and the reasons why its code is slow."""

    failure: str = ""
    findings: tuple[SassFinding, ...] = ()


@dataclass
class DeviceBuilds:
    """Builds of distinct sources by one compiler."""

    tools: Toolchain
    seen: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def by(cls, nvcc: str | None) -> DeviceBuilds:
        """Builds with this nvcc, or by default with the nvcc that opfacade finds. Earlier selections are dropped."""
        if nvcc:
            os.environ["OPFACADE_NVCC"] = nvcc
            ptxas.release.cache_clear()
            forget_selections()
        return cls(toolchain.find(cache.toolchain_memo()))

    @property
    def release(self) -> dict[str, str]:
        return {"nvcc": _dotted(self.tools.nvcc_release), "ptxas": _dotted(self.tools.ptxas_release)}

    def claim(self, spec: JitSpec) -> bool:
        """Whether this source is new for this architecture; from now on it counts as built."""
        key = codegen.source_digest(spec, rendered.sources(spec))
        with self.lock:
            fresh = key not in self.seen
            self.seen.add(key)
        return fresh

    def build(self, spec: JitSpec, deadline: float) -> Built | None:
        """Builds a source; None after the deadline."""
        if time.monotonic() > deadline:
            return None
        try:
            with tempfile.TemporaryDirectory() as place:
                return self._built(Path(place), spec)
        except (CompileError, OSError, subprocess.TimeoutExpired) as error:
            return Built(f"{type(error).__name__}: {error}")

    def _built(self, place: Path, spec: JitSpec) -> Built:
        sources = rendered.sources(spec)
        refuse_old_ptxas(sources, self.tools)
        write_sources(place, spec, sources)
        step = plan_steps(spec, self.tools, sources.lean)[0]
        done = subprocess.run(
            runner.command_line(step.argv), shell=True, cwd=place, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        log = done.stdout + done.stderr
        if done.returncode != 0:
            first = _ERROR.search(log)
            return Built(f"{first[0].strip() if first else log.strip()[-300:]} (status {done.returncode})")
        _, findings = sass.judge(spec.name, sources.device_text, log, place / CUBIN, self.tools)
        return Built("", tuple(findings))


def architectures(tools: Toolchain) -> list[str]:
    """Every architecture from sm_80 on that nvcc supports, in the form of a device's name."""
    listed = subprocess.run([tools.nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout
    numbers = sorted(int(number) for number in re.findall(r"compute_(\d+)", listed))
    return [f"sm_{number}{'a' if number >= _FEATURES else ''}" for number in numbers if number >= _OLDEST]


def _dotted(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))
