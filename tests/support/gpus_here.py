"""A test without the marker `gpu` sees no GPU on any machine; a test with the marker uses its worker's GPU.

So the same tests give the same answers on every machine: what selects for the current device selects for the CPU, in the test
and in the processes that it starts.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from functools import lru_cache

VARIABLE = "CUDA_VISIBLE_DEVICES"


def now() -> bool:
    """Whether torch currently has a GPU."""
    import torch

    return torch.cuda.is_available()


@lru_cache(maxsize=1)
def here() -> bool:
    """Queried once, before a test hides GPUs."""
    return now()


def turned(names: list[str], number: int) -> list[str]:
    """The same GPUs, with another one first for each number."""
    first = number % len(names) if names else 0
    return names[first:] + names[:first]


def take_turns(environ: MutableMapping[str, str]) -> None:
    """Workers of xdist on a machine with several GPUs: the current device of each is the next one, and all stay visible. To be
    called before CUDA starts."""
    worker = environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if not worker.isdigit():
        return
    given = environ.get(VARIABLE)
    if given is None:
        import torch

        given = ",".join(map(str, range(torch.cuda.device_count())))
    if "," in given:
        environ[VARIABLE] = ",".join(turned(given.split(","), int(worker)))


@contextmanager
def hidden() -> Iterator[None]:
    """No GPU for the library, nor for processes that start meanwhile."""
    import pytest
    import torch

    from opfacade.core import target

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "")
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(torch.cuda, "device_count", lambda: 0)
        target._has_cuda.cache_clear()
        yield
    target._has_cuda.cache_clear()


def marked(item) -> bool:
    return item.get_closest_marker("gpu") is not None
