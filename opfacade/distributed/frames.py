"""Frames: the messages that ranks send to each other. A header of 64 bytes identifies the call of the payload.

A receiver compares the header before it uses the payload, so different calls raise an error instead of giving a wrong result.
The size of the payload is in the header, because gloo ends the process of a receiver whose buffer is too small.
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
EAGER = {SETUP: "setup of the group", RESERVE: "reserve"}  # kinds of frames that belong to no plan


@dataclass(frozen=True, slots=True)
class Frame:
    """kind: one of the constants above.

    call: the number of the call in its group. digest: the digest of the plan. facts: a hash of all other values that must be
    equal on all ranks, such as seeds. size: the number of payload bytes.
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
    """The frame of a header; None if the bytes are not a header of this version."""
    magic, version, kind, call, size, digest, facts = _FORM.unpack(header.numpy().tobytes()[: _FORM.size])
    return Frame(kind, call, digest, facts, size) if (magic, version) == (_MAGIC, _VERSION) else None
