"""A call on disk: its descriptor, its tensors before the launch, and its outputs.

    <OPFACADE_DUMP_DIR>/<pid>-<call>-<random>/{call.json, inputs.pt, outputs.pt}

inputs.pt and then call.json are written before the launch, outputs.pt after it, so a crash leaves a dump without outputs. Only
the referenced pages of a pool are saved. The saved page tables and descriptor describe this smaller pool, but keep the call's
upper bound on pages, so the same kernel is selected and gives the same bits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opfacade import __version__, env
from opfacade.base import json_text, regular_files, strict_json
from opfacade.core.descriptor import operands_of
from opfacade.errors import ArgumentError
from opfacade.observe import call_pages, dump_files

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Descriptor
    from opfacade.core.sku import KernelSku

FAILURES = dump_files.FAILURES


@dataclass(frozen=True, slots=True)
class Dump:
    """A dumped call. outputs is empty if the process ended before they were written."""

    place: Path
    descriptor: str  # as JSON
    sku: str
    device: str
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Started:
    """A dump whose call has not finished. place: its directory. pages: the pages that it contains; None if it contains whole
    pools."""

    place: Path
    pages: call_pages.Pages | None


@dataclass(frozen=True, slots=True)
class Dumper:
    """Dumps the calls of one plan."""

    descriptor: Descriptor[Any]
    sku: KernelSku
    limits: dump_files.Limits

    @classmethod
    def of(cls, descriptor: Descriptor[Any], sku: KernelSku) -> Dumper | None:
        """A dumper; None if OPFACADE_DUMP_INCLUDE or OPFACADE_DUMP_EXCLUDE excludes the plan."""
        limits = dump_files.Limits.current()
        names = descriptor.op, sku.id
        wanted = _matches(names, env.dump_include()) and not _matches(names, env.dump_exclude())
        return cls(descriptor, sku, limits) if wanted else None

    def begin(self, tensors: Mapping[str, Tensor], call: int, pages: call_pages.Pages | None) -> Started:
        """Writes the files that precede a launch. If this raises one of FAILURES, no file is left."""
        pages = pages if _narrowable(self.descriptor, pages) else None
        size = sum(self._size(name, tensor, pages) for name, tensor in tensors.items())
        with dump_files.new_directory(f"{os.getpid()}-{call:06d}-", self.limits, size) as place:
            dump_files.save(place / "inputs.pt", self._kept(tensors, pages))
            dump_files.write(place / "call.json", json_text.text(self._facts(tensors, pages), indent=1).encode())
        return Started(place, pages)

    def finish(self, started: Started, written: Mapping[str, Tensor]) -> None:
        """Writes the outputs of the launch; waits for the device."""
        dump_files.save(started.place / "outputs.pt", self._kept(written, started.pages))

    def _facts(self, tensors: Mapping[str, Tensor], pages: call_pages.Pages | None) -> dict[str, Any]:
        device = str(next(iter(tensors.values())).device)
        facts = {"opfacade": __version__, "descriptor": narrowed(self.descriptor, pages).model_dump(mode="json")}
        return facts | {"sku": self.sku.id, "device": device} | ({"pages": pages.ids.tolist()} if pages is not None else {})

    def _size(self, name: str, tensor: Tensor, pages: call_pages.Pages | None) -> int:
        """The bytes of an operand, doubled if it is also an output."""
        axis = call_pages.axes(self.descriptor).get(name)
        once = tensor.nbytes if axis is None or pages is None else call_pages.kept_bytes(tensor, axis.page, pages)
        return once * (2 if operands_of(self.descriptor)[name].written else 1)

    def _kept(self, tensors: Mapping[str, Tensor], pages: call_pages.Pages | None) -> dict[str, Tensor]:
        axes = call_pages.axes(self.descriptor) if pages is not None else {}
        kept = {}
        for name, tensor in tensors.items():
            if pages is not None and name in axes:
                kept[name] = call_pages.gathered(tensor, axes[name].page, pages)
            elif pages is not None and name == call_pages.table_name(self.descriptor):
                kept[name] = call_pages.renumbered(tensor, pages)
            else:
                # A copy, because torch.save would write the whole storage of a view.
                kept[name] = tensor.detach().to("cpu", copy=True).clone()
        return kept


def _matches(names: tuple[str, ...], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _narrowable(descriptor: Descriptor[Any], pages: call_pages.Pages | None) -> bool:
    """Whether the dump may use a smaller pool. If requests share pages, the table may have more entries than the pool has
    pages; then the size of the pool cannot replace a missing bound."""
    tables = descriptor.request_tables()
    return pages is not None and tables is not None and (tables.bounded or int(pages.named.sum()) <= tables.num_pages)


def narrowed(descriptor: Descriptor[Any], pages: call_pages.Pages | None) -> Descriptor[Any]:
    """The same problem with a pool of only the referenced pages, and with the same bounds."""
    return descriptor if pages is None else descriptor.on_pages(pages.ids.numel())


def load(place: Path) -> Dump:
    """Reads a dump, with tensors on the CPU. ArgumentError if it is missing or damaged."""
    try:
        facts = strict_json.loads(regular_files.read(place / "call.json"))
        descriptor, sku, device = json.dumps(facts["descriptor"]), str(facts["sku"]), str(facts["device"])
        inputs = _tensors(dump_files.load(place / "inputs.pt", "cpu"))
        written = place / "outputs.pt"
        outputs = _tensors(dump_files.load(written, "cpu")) if written.exists() else {}
    except dump_files.UNREADABLE as error:
        raise damaged(place, f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}") from error
    return Dump(place, descriptor, sku, device, inputs, outputs)


def damaged(place: Path, got: str) -> ArgumentError:
    return ArgumentError(f"replay: {place} expected a dump, got {got}. [OPF-E010]", code="OPF-E010", op="replay", stage="run")


def _tensors(found: object) -> dict[str, Tensor]:
    """Returns the dict of tensors; ValueError for any other content."""
    import torch

    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError("no names with tensors")
    if not all(isinstance(tensor, torch.Tensor) for tensor in found.values()):
        raise ValueError("an object that is not a tensor")
    return found


def find(place: Path) -> tuple[Path, ...]:
    """The dumps in a directory, or the directory itself if it is a dump."""
    return (place,) if (place / "call.json").exists() else tuple(sorted(path.parent for path in place.glob("*/call.json")))
