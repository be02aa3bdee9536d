"""Refusals and SKUs of folds for all problems that they are the same for: of one form, whose rows have the same extents."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from opfacade.backends.cuda.folds.layout import RowLayout
from opfacade.core.answer_cache import AnswerCache, cached_by
from opfacade.core.any_size import AtAnySize
from opfacade.core.candidate import Candidate, Reason
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._folds.op import FoldOp
from opfacade.plans._folds.program import FoldProgram

MAX_ROW = 2**31 - 2**15  # kernels count past the end of a row by less than the elements of a CTA at once


F = TypeVar("F", bound=FoldOp)
Fold = TypeVar("Fold", bound=FoldOp, contravariant=True)


class Kernel(Protocol[Fold]):
    """A kernel of a fold, as in `engine.FoldKernel`."""

    @property
    def layout(self) -> RowLayout: ...
    def launched(self, descriptor: Fold) -> FoldProgram: ...
    def row(self, descriptor: Fold) -> tuple[int, ...]: ...
    def declines(self, descriptor: Fold, target: Target) -> Sequence[Reason]: ...
    def sku(self, descriptor: Fold, target: Target) -> KernelSku: ...


def kept(plain: Candidate, kernel: Kernel[F], whole: bool) -> Candidate:
    """The candidate, whose answers are cached unless the number of rows is part of them. whole: whether the kernel runs the
    whole program, so that its rows are those of `refused_alike`."""

    def of_rows(descriptor: F, target: Target) -> Hashable:
        return None if kernel.layout.cuts else (descriptor.form, kernel.row(descriptor), target)

    def of_configs(descriptor: F, target: Target) -> Hashable:
        return (descriptor.form, kernel.layout.config(kernel.launched(descriptor), target), target)

    sku = cached_by(of_rows, cached_by(of_configs, kernel.sku))
    return replace(plain, declines=_declines(kernel, AtAnySize if whole else tuple), sku=sku, size_free=False)


def _declines(kernel: Kernel[F], kind: type[tuple[Reason, ...]]) -> Callable[[F, Target], Sequence[Reason]]:
    """The form alone decides while a row is not too long."""
    known: AnswerCache[Sequence[Reason]] = AnswerCache()

    def declines(descriptor: F, target: Target) -> Sequence[Reason]:
        if kernel.layout.cuts and descriptor.folded().split != "off":
            return kernel.declines(descriptor, target)
        row = kernel.row(descriptor)
        key = (descriptor.form, () if math.prod([size or 1 for size in row]) <= MAX_ROW else row, target)
        return known.get(key, lambda: kind(kernel.declines(descriptor, target)))

    return declines
