"""The destinations of the rows of an append, and errors that name FlashInfer's arguments."""

from __future__ import annotations

from typing import NamedTuple

import torch

from opfacade.errors import IndexDataError, Issue

CODE = "OPF-V001"


class Where(NamedTuple):
    """The request and position of each new row, and the page table of the requests."""

    request: torch.Tensor
    position: torch.Tensor
    indices: torch.Tensor
    indptr: torch.Tensor


def index_error(
    op: str, wrong: tuple[str, int, int], allowed: str, request: int = -1, got: str = "", code: str = CODE
) -> IndexDataError:
    """The error. wrong: the argument, the index of the element (-1 if unknown), and its value."""
    argument, position, value = wrong
    name = argument if position < 0 else f"{argument}[{position}]"
    got = got or f"{value}{'' if request < 0 else f' for request {request}'}"
    issue = Issue(code, name, allowed, got, kind="IndexDataError")
    error = IndexDataError(f"{op}.run: {issue}", code=code, op=op, stage="run", issues=[issue])
    error.argument, error.request, error.position = argument, request, position
    error.value, error.limit = value, allowed
    return error
