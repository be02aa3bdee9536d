"""The command that adds an extra, such as the CUDA compiler, to this installation: a clone, a wheel, or a package from an
index."""

from __future__ import annotations

import json
import shlex
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path

_NAME = "opfacade"
# Packages of the extras in pyproject.toml, for an installation without metadata.
PACKAGES = {
    "cuda": ("nvidia-cuda-nvcc>=13.3", "nvidia-nvvm>=13.3", "nvidia-cuda-crt>=13.3", "nvidia-cuda-nvdisasm>=13.3",
             "nvidia-cuda-runtime>=13.0", "nvidia-cuda-cccl>=13.0"),
    "bench": ("matplotlib>=3.8",),
    "transformers": ("transformers>=5.17", "psutil>=5.9"),
}  # fmt: skip


def install_cuda() -> str:
    """`install` for the CUDA compiler."""
    return install("cuda")


@lru_cache(maxsize=8)
def install(extra: str) -> str:
    """A command for a shell, such as `python -m pip install -e '/home/me/opfacade[cuda]'`."""
    return command(Path(__file__).parents[2], _distribution(), extra)


def command(root: Path, found: metadata.Distribution | None, extra: str = "cuda") -> str:
    """root: the folder that contains the package; found: the metadata of its installation."""
    if (root / "pyproject.toml").is_file():
        return _pip("-e", f"{root}[{extra}]")
    if found is None:
        return _pip(*PACKAGES[extra])
    origin = json.loads(found.read_text("direct_url.json") or "{}").get("url")
    if origin is None:
        return _pip(f"{_NAME}[{extra}]")  # from the index from which the package was installed
    if origin.startswith("file:") and not Path(origin.removeprefix("file://")).exists():
        return _pip(*(_required(found, extra) or PACKAGES[extra]))
    return _pip(f"{_NAME}[{extra}] @ {origin}")


def _required(found: metadata.Distribution, extra: str) -> tuple[str, ...]:
    return tuple(
        text.partition(";")[0].strip() for text in found.requires or () if f"extra == '{extra}'" in text.replace('"', "'")
    )


def _pip(*words: str) -> str:
    return shlex.join((sys.executable, "-m", "pip", "install", *words))


def _distribution() -> metadata.Distribution | None:
    try:
        return metadata.distribution(_NAME)
    except metadata.PackageNotFoundError:
        return None
