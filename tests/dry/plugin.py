"""pytest plugin: `pytest -p tests.dry.plugin --dry-list FILE --assert=plain -m gpu`, see `python -m tests.dry`."""

import functools
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.dry import device, silent

ARCH = "sm_90a"
_monkey = pytest.MonkeyPatch()


def pytest_addoption(parser):
    parser.addoption("--dry-list", type=Path, help="where to write the kernels that are asked for, a line of JSON each")


class _Module:
    """A stub of a loaded binary."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: 0


class Asked:
    """Records each kernel at its first request."""

    def __init__(self, path):
        self._path, self._seen = path, set()

    def note(self, spec):
        if spec.identity not in self._seen:
            self._seen.add(spec.identity)
            with self._path.open("a") as file:
                file.write(spec.identity + "\n")

    def launcher(self, spec, *args):
        self.note(spec)
        return lambda args, workspace: None

    def load(self, spec, **kwargs):
        self.note(spec)
        return _Module()

    def build(self, spec, **kwargs):
        self.note(spec)
        return Path("/nonexistent/kernel.so")


def _checks(issues):
    """A plan checks everything except the device of the tensors."""
    from opfacade.core.checks import check

    def checked(plan, args, workspace):
        if plan.sku.backend != "cuda" or type(args) is not plan.descriptor.args_type:
            return issues(plan, args, workspace)
        return check(plan._operands, {name: getattr(args, name) for name in type(args).__slots__}, None)

    return checked


def _guarded(subject, args):
    subject.run(args, subject.workspace())
    return []


def _here(run):
    """For subprocess.run: fingerprints of a new process, which would find no GPU, are computed in this process, once."""
    from opfacade.testing import fingerprint

    once = functools.cache(lambda: json.dumps(fingerprint.fingerprints("cuda", "cuda", 0)))

    def stand_in(command, *args, **kwargs):
        if fingerprint.__name__ not in command:
            return run(command, *args, **kwargs)
        return subprocess.CompletedProcess(command, 0, once(), "")

    return stand_in


def pytest_configure(config):
    if config.option.dry_list is None:
        return
    silent.install(_monkey)
    device.install(_monkey, ARCH)
    from opfacade import jit
    from opfacade.backends.cuda import support
    from opfacade.backends.cuda.host import quick
    from opfacade.bench import ceilings
    from opfacade.core.candidate import NO_FAST_PATHS
    from opfacade.plan import Plan
    from opfacade.testing import determinism, guarded, numerics
    from opfacade.testing import timing as bench
    from opfacade.validation import capture_and_fork as moment
    from opfacade.validation.device import Channels

    asked = Asked(config.option.dry_list)
    once = bench._summary([1.0])
    channel = Channels.on
    repeat, campaign = determinism.run_to_run, determinism.batch_invariance
    for place, name, stand_in in (
        (support, "launcher", asked.launcher),
        (jit, "load", asked.load),
        (jit, "build", asked.build),
        (quick, "make", lambda *given: NO_FAST_PATHS.replay),  # stubs of a library replay nothing
        (moment, "refuse_capture", lambda *args: None),
        # Tensors on the CPU name no GPU: without this, they would create a second entry beside the current device's.
        (Channels, "on", lambda channels, device: channel(channels, device or 0)),
        (Plan, "_issues", _checks(Plan._issues)),
        (numerics, "check", lambda *args, **kwargs: numerics.Report(0.0, 0.0, "", 1)),
        (guarded, "run", _guarded),
        (subprocess, "run", _here(subprocess.run)),
        (bench, "time_gpu", lambda call, *args, **kwargs: (call(), once)[1]),
        (bench, "time_host", lambda call, *args, **kwargs: (call(), once)[1]),
        (ceilings, "of", lambda device: {"TBs": 4.0, "TFLOPs": 600.0}),
        (determinism, "run_to_run", lambda subject, runs, seed: repeat(subject, 2, seed)),
        (
            determinism,
            "batch_invariance",
            lambda subject, size, seed: campaign(subject, replace(size, needles=8, compositions=2), seed),
        ),
    ):
        _monkey.setattr(place, name, stand_in)


def pytest_unconfigure(config):
    _monkey.undo()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with device.OnCpu():
        return (yield)
