"""The command that adds the CUDA compiler to this installation: a clone, a wheel, or a package from an index."""

from __future__ import annotations

import json
import shlex
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path

_NAME = "opfacade"
# What the extra `cuda` of pyproject.toml brings, for an installation that does not know its own metadata.
_PACKAGES = ("nvidia-cuda-nvcc>=13.3", "nvidia-nvvm>=13.3", "nvidia-cuda-crt>=13.3", "nvidia-cuda-nvdisasm>=13.3",
             "nvidia-cuda-runtime>=13.0", "nvidia-cuda-cccl>=13.0")  # fmt: skip


@lru_cache(maxsize=1)
def install_cuda() -> str:
    """A command for a shell, such as `python -m pip install -e '/home/me/opfacade[cuda]'`."""
    return command(Path(__file__).parents[2], _distribution())


def command(root: Path, found: metadata.Distribution | None) -> str:
    """root: the folder that holds the package; found: what is known of its installation."""
    if (root / "pyproject.toml").is_file():
        return _pip("-e", f"{root}[cuda]")
    if found is None:
        return _pip(*_PACKAGES)
    origin = json.loads(found.read_text("direct_url.json") or "{}").get("url")
    if origin is None:
        return _pip(f"{_NAME}[cuda]")  # from the index that it came from
    if origin.startswith("file:") and not Path(origin.removeprefix("file://")).exists():
        return _pip(*(_required(found) or _PACKAGES))
    return _pip(f"{_NAME}[cuda] @ {origin}")


def _required(found: metadata.Distribution) -> tuple[str, ...]:
    return tuple(text.partition(";")[0].strip() for text in found.requires or () if "extra == 'cuda'" in text.replace('"', "'"))


def _pip(*words: str) -> str:
    return shlex.join((sys.executable, "-m", "pip", "install", *words))


def _distribution() -> metadata.Distribution | None:
    try:
        return metadata.distribution(_NAME)
    except metadata.PackageNotFoundError:
        return None
