"""Checks of an engine's installation: errors if it is missing or lacks names, and a warning for releases that were not
tested."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

from opfacade.base import notices
from opfacade.errors import ReleaseWarning
from opfacade.integrations.refusal import refuse


class Engine(NamedTuple):
    """name: the engine's package, and the adapter's name in messages. tested: the release for which the adapter was tested."""

    name: str
    tested: str

    @contextmanager
    def importing(self) -> Iterator[None]:
        """A context for imports of the engine's names. Raises UnsupportedError if it is not installed (OPF-I006), or if its
        release does not have one of the names (OPF-I005)."""
        try:
            yield
        except ImportError as error:
            if (error.name or "").partition(".")[0] != self.name:
                raise
            self._refuse(error)

    @contextmanager
    def registering(self) -> Iterator[None]:
        """A context for adding entries to the engine's registries. Raises UnsupportedError if the release has other registries
        (OPF-I005)."""
        try:
            yield
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._refuse(error)

    def tell_release(self) -> None:
        """Warns once per process if the release differs from the tested one, which may still work."""
        found = self._release()
        if found and found.partition("+")[0] != self.tested:
            told = f"{self.name}: {found} is installed, and opfacade's adapter was tested with {self.tested}."
            notices.tell_once(f"{self.name} release", f"{told} {self._install} has that one.", ReleaseWarning)

    def _refuse(self, error: Exception) -> NoReturn:
        if sys.modules.get(self.name) is None:
            hint = f"{self._install} brings it."
            refuse(self.name, "OPF-I006", self.name, expected="to be installed", got=error, hint=hint)
        got = f"{self._release() or 'another release'}: {error}"
        refuse(self.name, "OPF-I005", self.name, expected=self.tested, got=got, hint=f"{self._install} has that one.")

    def _release(self) -> str:
        """The release of the imported engine; empty if unknown."""
        return str(getattr(sys.modules.get(self.name), "__version__", ""))

    @property
    def _install(self) -> str:
        return shlex.join((sys.executable, "-m", "pip", "install", f"{self.name}=={self.tested}"))


VLLM = Engine("vllm", "0.33.0")
SGLANG = Engine("sglang", "0.5.23")
