"""Inputs whose products in one step of k outweigh all others: a lost fp8 step is visible, while random inputs hide it.

A step of fp8 may be off by 34 units at 13 bits below the largest of its sum and products, so 512 steps of random products
together may be off by more than the result of one step. Here the products of one step have one sign and are 256 times the
others.
"""

from dataclasses import replace

import torch

from opfacade.testing import inputs


def planted(problem, first, count=32, seed=3):
    """A call whose elements `first` to `first + count` of k are 1, and the others at most 1/16. Layouts mk and nk."""
    args = inputs.make_args(problem, seed)
    generator = torch.Generator().manual_seed(seed)
    for name in ("x", "weight"):
        like = getattr(args, name)
        made = (torch.rand(like.shape, generator=generator) - 0.5) / 8
        made[..., first : first + count] = 1.0
        args = replace(args, **{name: made.to(like.dtype)})
    return args
