"""Frames: what one rank sends to another. A header of 64 bytes says what the bytes behind it belong to.

A receiver compares the header before it uses a byte, so different calls cause an error and not a wrong result. The size of the
payload is in the header, because gloo ends the process of a receiver whose buffer is too small.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CALL, ALARM, BYE, SETUP, RESERVE, ASK, PLACE = range(1, 8)
HEADER = 64
_FORM = struct.Struct("<8sIIQQ8s8s")
_MAGIC = b"opfacade"
_VERSION = 2
EAGER = {SETUP: "setup of the group", RESERVE: "reserve"}  # kinds of calls without a plan


@dataclass(frozen=True, slots=True)
class Frame:
    """kind: one of the constants above.

    call: the number of the call in its group. digest: of the plan. facts: a hash of everything else that must be equal, such as
    seeds. size: bytes that follow.
    """

    kind: int
    call: int
    digest: bytes = b"\0" * 8
    facts: bytes = b"\0" * 8
    size: int = 0

    def header(self) -> Tensor:
        import torch

        text = _FORM.pack(_MAGIC, _VERSION, self.kind, self.call, self.size, self.digest, self.facts)
        return torch.frombuffer(bytearray(text.ljust(HEADER, b"\0")), dtype=torch.uint8)


def frame_of(header: Tensor) -> Frame | None:
    """The frame of a header; None for bytes that are not a header of this version."""
    magic, version, kind, call, size, digest, facts = _FORM.unpack(header.numpy().tobytes()[: _FORM.size])
    return Frame(kind, call, digest, facts, size) if (magic, version) == (_MAGIC, _VERSION) else None
