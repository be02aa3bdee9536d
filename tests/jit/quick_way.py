"""Calls that the host library reads from the argument bundle and replays, with a driver that only records its arguments."""

from dataclasses import dataclass

from opfacade.backends.cuda.host.direct import Direct, KernelCall
from opfacade.core.descriptor import Args
from tests.jit.host.test_contract import HOST


class ReplayPath:
    """The replay path of a descriptor that has learned from a bundle."""

    def __init__(self, driver, module, descriptor, sound, needed=0, launches=1, scalar=2):
        self.driver, self.module = driver, module
        kernel = KernelCall(module.run, (scalar, 0.5, launches), needed > 0, needed, HOST)
        self.direct = Direct(module, kernel, descriptor)
        self.direct.learn(sound)

    def __call__(self, args, workspace=None):
        """True if the replay path made the call."""
        before = self.driver.launches
        made = not self.direct.paths.replay(id(args), id(workspace))
        assert made or self.driver.launches == before
        return made

    def recorded(self, args, workspace=None):
        """Calls as often as needed to record the call, after the fast path has registered all extents."""
        return self.direct.paths.fast(args, workspace, True) and self(args, workspace) and self(args, workspace)

    def afresh(self, args, workspace=None):
        """Makes the call on the fast path and returns its launch."""
        assert self.direct.paths.fast(args, workspace, True)
        return self.driver.last()


@dataclass(frozen=True, slots=True, kw_only=True)
class Other(Args):
    q: object = None
