"""Softmax and log softmax of random shapes; x and out are separate tensors."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import torch

from bench.maps import Problem
from bench.sweeps import shapes
from opfacade.plans.softmax import SoftmaxDescriptor


def problem(draw: Random) -> Problem:
    rows, width = shapes.shape(draw)
    dtype = draw.choice(("f32", "f16", "bf16"))
    log = draw.random() < 0.3
    told, lie = shapes.laid_out(draw, "x")
    function = torch.log_softmax if log else torch.softmax
    name = f"{'log softmax' if log else 'softmax'} {dtype} {rows} x {width}{told}"
    return Problem(
        name, SoftmaxDescriptor(shape=(rows, width), dtype=dtype, log=log), lie, lambda args: function(args.x, -1), rows
    )


def problems(draw: Random) -> Iterator[Problem]:
    while True:
        yield problem(draw)
