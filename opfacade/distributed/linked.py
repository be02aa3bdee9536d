"""How the ranks of a new group agree on a Link: each rank reports its GPU, sends a test pattern over the link, and votes."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from opfacade.core.links import NO_LINKS, Links
from opfacade.distributed.frames import SETUP
from opfacade.distributed.link import Link
from opfacade.distributed.peers import MOST_PEERS, PeerLink, known_by
from opfacade.errors import OpfacadeError

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

Ask = Callable[[int, object], Iterable[tuple[int, str]]]
_WORDS = 1000


def made(process_group: ProcessGroup, timeout_s: float, by_peers: bool, ask: Ask) -> Link | None:
    """The link, if every rank has its own GPU and an NCCL backend, and the test data arrived correctly; otherwise None on all
    ranks."""
    if process_group.size() == 1:
        return None
    device = _device(process_group)
    gpus = _said(ask, "" if device is None else _gpu(device))
    if device is None or not all(gpus) or len(set(gpus)) < len(gpus):
        return None
    peers = _of_peers(process_group, device, timeout_s, ask) if by_peers else None
    if peers is not None:
        return peers
    link = Link(process_group, device)
    wrong = _tried(link, process_group.rank(), timeout_s)
    return None if any(_said(ask, wrong)) else link


def _of_peers(process_group: ProcessGroup, device: torch.device, timeout_s: float, ask: Ask) -> Link | None:
    """A PeerLink, if all ranks are on one host, can access each other's GPUs, and the test data arrived correctly; otherwise
    None."""
    import torch

    hosts = _said(ask, platform.node())
    reach = all(torch.cuda.can_device_access_peer(device, i) for i in range(torch.cuda.device_count()) if i != device.index)
    able = _said(ask, "" if reach and known_by(process_group) else "the GPUs of peers cannot be reached")
    if len(set(hosts)) > 1 or any(able) or process_group.size() > MOST_PEERS:
        return None
    try:
        link, wrong = PeerLink(process_group, device, timeout_s), ""
    except (RuntimeError, OpfacadeError, ImportError) as error:
        link, wrong = None, str(error) or "an error"
    if any(_said(ask, wrong)) or link is None:
        return None
    return None if any(_said(ask, _tried(link, process_group.rank(), timeout_s))) else link


def links_of(link: Link | None) -> Links:
    """The links for a Target: NO_LINKS if kernels cannot write to the memory of peers."""
    if not isinstance(link, PeerLink):
        return NO_LINKS
    return Links(kind="nvlink" if _by_nvlink(link) else "pcie")


def _by_nvlink(link: PeerLink) -> bool:
    """Whether NVLink connects this GPU with every other one."""
    import torch

    try:
        detect: Any = torch._C._distributed_c10d._detect_dma_connectivity  # type: ignore[attr-defined]
        row = detect(torch._C._autograd.DeviceType.CUDA, "nvlink").matrix[link.device.index]
    except (AttributeError, RuntimeError):
        return False
    return all(known > 0 for gpu, known in enumerate(row) if gpu != link.device.index)


def _said(ask: Ask, text: str) -> list[str]:
    return [json.loads(answer) for _, answer in ask(SETUP, text)]


def _device(process_group: ProcessGroup) -> torch.device | None:
    """This rank's GPU, if the process group has an NCCL backend."""
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        backend = process_group._get_backend(torch.device("cuda"))
    except RuntimeError:
        return None
    return torch.device("cuda", torch.cuda.current_device()) if backend.name().lower() == "nccl" else None


def _gpu(device: torch.device) -> str:
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)


def _tried(link: Link, rank: int, timeout_s: float) -> str:
    """Tests an all-gather and an exchange, which also creates the communicators. Returns the error, or "" if the data were
    correct."""
    import torch

    try:
        link.learn("", bytes(8))
        gathered = torch.stack(link.gathered("", _words(link, rank, 0), ()))
        swapped = torch.stack(link.swapped("", [_words(link, rank, to) for to in range(link.world)], gathered[0], ()))
        end = time.monotonic() + timeout_s
        while not link.finished():
            if time.monotonic() > end:
                return f"no data within {timeout_s:g} s"
            time.sleep(0.001)
        want = [torch.stack([_words(link, r, to) for r in range(link.world)]) for to in (0, rank)]
        return "" if all(map(torch.equal, (gathered, swapped), want)) and not link.odd else "wrong data"
    except RuntimeError as error:
        return str(error).splitlines()[0] or "an error"


def _words(link: Link, source: int, to: int) -> torch.Tensor:
    """Test numbers that differ for each pair of ranks and each direction."""
    import torch

    return torch.arange(_WORDS, device=link.device) * 31 + source * 7 + to * 13
