"""A call on disk: its descriptor, its tensors before, and what was written.

    <OPFACADE_DUMP_DIR>/<pid>-<call>/{call.json, inputs.pt, outputs.pt}

call.json is written last of what comes before the launch, outputs.pt after it: a crash leaves a dump without outputs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from opfacade import __version__, env
from opfacade.errors import ArgumentError, unwritable

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.descriptor import Descriptor
    from opfacade.sku import KernelSku


@dataclass(frozen=True, slots=True)
class Dump:
    """A dumped call. outputs is empty if the process did not live to write them."""

    place: Path
    descriptor: str  # as JSON
    sku: str
    device: str
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


def begin(descriptor: Descriptor[Any], sku: KernelSku, tensors: Mapping[str, Tensor], call: int) -> Path:
    """Write what is known before a launch; returns the directory."""
    place = env.dump_dir() / f"{os.getpid()}-{call:06d}"
    try:
        place.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise unwritable("OPFACADE_DUMP_DIR", str(place.parent), error) from error
    _save(place / "inputs.pt", tensors)
    device = str(next(iter(tensors.values())).device)
    facts = {"opfacade": __version__, "descriptor": descriptor.model_dump(mode="json"), "sku": sku.id, "device": device}
    (place / "call.json").write_text(json.dumps(facts, indent=1))
    return place


def finish(place: Path, written: Mapping[str, Tensor]) -> None:
    """Write what the launch has written; waits for the device."""
    _save(place / "outputs.pt", written)


def load(place: Path) -> Dump:
    """A dump read back, tensors on the CPU. ArgumentError if there is none."""
    import torch

    try:
        facts = json.loads((place / "call.json").read_text())
        inputs = torch.load(place / "inputs.pt", weights_only=True)
    except (OSError, ValueError, EOFError, RuntimeError, UnpicklingError) as error:  # torch has no error of its own
        raise ArgumentError(f"replay: {place} expected a dump, got {error}. [OPF-E010]", code="OPF-E010") from error
    written = place / "outputs.pt"
    outputs = torch.load(written, weights_only=True) if written.exists() else {}
    return Dump(place, json.dumps(facts["descriptor"]), facts["sku"], facts["device"], inputs, outputs)


def find(place: Path) -> tuple[Path, ...]:
    """The dumps in a directory, or the one that it is."""
    return (place,) if (place / "call.json").exists() else tuple(sorted(path.parent for path in place.glob("*/call.json")))


def _save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    import torch

    # A copy: what is saved must be the elements, and not the whole storage that a view of them is part of.
    torch.save({name: tensor.detach().to("cpu", copy=True).clone() for name, tensor in tensors.items()}, path)
