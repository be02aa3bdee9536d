"""Rearrangements of images and spectra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opfacade.plans.elementwise import MapDescriptor
from opfacade.programs import words as w
from opfacade.programs.expression import Node, coord
from opfacade.recipes._draft import Draft, zero
from opfacade.recipes._recipe import recipe
from opfacade.recipes._tensors import Shaped, axes_of, refuse, sizes
from opfacade.recipes.data_movement.indexing import roll

if TYPE_CHECKING:
    from opfacade.recipes._tensors import Dims


def _quotient_and_rest(draft: Draft, place: Node, name: str, size: int) -> tuple[Node, Node]:
    by = draft.number(name, max(size, 1), "i64")
    return w.floordiv(place, by), w.mod(place, by)


@recipe("nn.functional.pixel_shuffle")
def pixel_shuffle(input: Shaped, upscale_factor: int) -> MapDescriptor:
    """[*, C r r, H, W] -> [*, C, H r, W r]."""
    r, rank = upscale_factor, input.rank
    if rank < 3 or r < 1 or input.shape[-3] % (r * r):
        refuse("input", "[..., C * r * r, H, W]", input.shape)
    draft = Draft([*input.shape[:-3], input.shape[-3] // (r * r), input.shape[-2] * r, input.shape[-1] * r])
    places, by = draft.here(), draft.number("r", r, "i64")
    row, down, column, right = (op(place, by) for place in places[-2:] for op in (w.floordiv, w.mod))
    places[-3:] = [(places[-3] * by + down) * by + right, row, column]
    return draft.map(draft.source("input", input).at(places), dtype=input.dtype)


@recipe("nn.functional.pixel_unshuffle")
def pixel_unshuffle(input: Shaped, downscale_factor: int) -> MapDescriptor:
    """[*, C, H r, W r] -> [*, C r r, H, W]."""
    r, rank = downscale_factor, input.rank
    if rank < 3 or r < 1 or input.shape[-1] % r or input.shape[-2] % r:
        refuse("input", "[..., C, H * r, W * r]", input.shape)
    draft = Draft([*input.shape[:-3], input.shape[-3] * r * r, input.shape[-2] // r, input.shape[-1] // r])
    places = draft.here()
    by = draft.number("r", r, "i64")
    rest, right = w.floordiv(places[-3], by), w.mod(places[-3], by)
    channel, down = w.floordiv(rest, by), w.mod(rest, by)
    places[-3:] = [channel, places[-2] * by + down, places[-1] * by + right]
    return draft.map(draft.source("input", input).at(places), dtype=input.dtype)


@recipe("nn.functional.channel_shuffle")
def channel_shuffle(input: Shaped, groups: int) -> MapDescriptor:
    if input.rank < 3 or groups < 1 or input.shape[1] % groups:
        refuse("groups", "a divisor of the size of axis 1, and an input with at least 3 axes", groups)
    draft = Draft(input.shape)
    places, number = draft.here(), draft.number("groups", groups, "i64")
    each = draft.number("each", max(input.shape[1] // groups, 1), "i64")
    places[1] = w.mod(places[1], number) * each + w.floordiv(places[1], number)
    return draft.map(draft.source("input", input).at(places), dtype=input.dtype)


@recipe("nn.functional.unfold")
def unfold(input: Shaped, kernel_size: object, dilation: object = 1, padding: object = 0, stride: object = 1) -> MapDescriptor:
    """im2col: [N, C, H, W] -> [N, C kh kw, L]; elements outside the image are 0."""
    if input.rank not in (3, 4):
        refuse("input", "[N, C, H, W] or [C, H, W]", input.shape)
    given = {"kernel_size": kernel_size, "dilation": dilation, "padding": padding, "stride": stride}
    kernel, apart, around, step = (_two(name, one) for name, one in given.items())
    size = input.shape[-2:]
    blocks = [(size[i] + 2 * around[i] - apart[i] * (kernel[i] - 1) - 1) // step[i] + 1 for i in (0, 1)]
    if min(blocks) < 1:
        refuse("kernel_size", f"at least one block in {size}", blocks)
    draft = Draft([*input.shape[:-3], input.shape[-3] * kernel[0] * kernel[1], blocks[0] * blocks[1]])
    rows, block = coord(input.rank - 3), coord(input.rank - 2)
    rest, right = _quotient_and_rest(draft, rows, "kernel1", kernel[1])
    channel, down = _quotient_and_rest(draft, rest, "kernel0", kernel[0])
    first, second = _quotient_and_rest(draft, block, "blocks1", blocks[1])
    at = []
    for i, (of_block, of_kernel) in enumerate([(first, down), (second, right)]):
        by, far, before = (
            draft.number(f"{n}{i}", v[i], "i64") for n, v in (("stride", step), ("apart", apart), ("pad", around))
        )
        at.append(of_block * by + of_kernel * far - before)
    places = [*draft.here(range(input.rank - 3)), channel, *at]
    return draft.map(draft.source("input", input).at(places, zero(input.type)), dtype=input.dtype)


def _two(name: str, given: object) -> tuple[int, int]:
    found = sizes(name, given)
    found = found * 2 if len(found) == 1 else found
    if len(found) != 2:
        refuse(name, "one or two numbers", given)
    return found[0], found[1]


def _shifted(input: Shaped, dim: Dims, backward: bool) -> MapDescriptor:
    axes = tuple(range(input.rank)) if dim is None else axes_of("dim", dim, input.rank)
    halves = [input.shape[axis] // 2 for axis in axes]
    return roll.make(input, tuple(-(-input.shape[a] // 2) if backward else h for a, h in zip(axes, halves, strict=True)), axes)


@recipe("fft.fftshift")
def fftshift(input: Shaped, dim: Dims = None) -> MapDescriptor:
    return _shifted(input, dim, False)


@recipe("fft.ifftshift")
def ifftshift(input: Shaped, dim: Dims = None) -> MapDescriptor:
    return _shifted(input, dim, True)
