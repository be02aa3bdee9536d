"""Quantisation from its formula in plain torch: every step is exact or rounded once, so there is one right answer."""

import torch

DTYPES = {"f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2, "i8": torch.int8}
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}


def scale_of(most, dtype, least, powers):
    """The scale of the largest magnitude: over the largest number of dtype; for powers of two rounded up to one."""
    found = most.float().clamp(min=least) / torch.tensor(LARGEST[dtype], dtype=torch.float32)
    if not powers:
        return found
    part, exponent = torch.frexp(found.double())  # part in [1/2, 1)
    return (
        torch.ldexp(torch.ones_like(part), torch.where(part == 0.5, exponent - 1, exponent)).clamp(2.0**-127, 2.0**127).float()
    )


def stored(quotient, dtype):
    """To the nearest, ties to even, saturating."""
    if dtype is torch.int8:
        return quotient.round().clamp(-128, 127).to(dtype)
    return quotient.clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype)


def over_groups(x, scale, group):
    """The scale that each element of a row has."""
    return scale.repeat_interleave(group, -1)[..., : x.shape[-1]]


def of_blocks(x, block):
    """The largest magnitude of each block of a matrix; those at an edge are smaller."""
    rows, columns = block
    cut = [[part.abs().amax() for part in band.split(columns, 1)] for band in x.split(rows, 0)]
    return torch.stack([torch.stack(row) for row in cut])


def over_blocks(x, scale, block):
    wide = scale.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return wide[: x.shape[0], : x.shape[1]]
