"""Judges the outputs of one row by its kept set and keys in fp64: the error model race-f32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opfacade.testing.families.sampling.kept import LN2, UNIT, RaceRow
from opfacade.testing.families.sampling.race import Array, minus_log2_exponential, words

WRONG = math.inf


def judged(row: RaceRow, got: dict[str, Any]) -> dict[str, float]:
    """{output: error relative to its bound}. An infinite error means a wrong token, rank or flag."""
    if not row.any:
        return _empty(got)
    found = {"valid": 0.0 if got["valid"] == 1 else WRONG, "token": _token(row, int(got["token"]))}
    if found["token"] <= 1 and "logprob" in got:
        found |= _reported(row, got)
    if "top_tokens" in got:
        found |= _top(row, got)
    if "probs" in got:
        found["probs"] = probabilities_error(row, got["probs"])
    return found


def _empty(got: dict[str, Any]) -> dict[str, float]:
    want = {"token": -1, "valid": 0, "rank": -1, "top_tokens": -1, "top_logprobs": -np.inf, "probs": 0}
    found = {name: 0.0 if np.all(got[name] == value) else WRONG for name, value in want.items() if name in got}
    return found | ({"logprob": 0.0 if np.isnan(got["logprob"]) else WRONG} if "logprob" in got else {})


def _token(row: RaceRow, token: int) -> float:
    """The difference between the best key of the tokens that must be kept and the key of `token`, relative to both bounds."""
    if not 0 <= token < row.inside.size or not row.inside[token]:
        return WRONG
    may, must = row.kept
    place = int(np.flatnonzero(row.order == token)[0])
    if not may[place]:
        return WRONG
    if row.greedy:
        return 0.0 if row.before[0][place] == 0 else WRONG
    ids = np.unique(np.append(row.order[must], token))
    descriptor, values = row.row.descriptor, row.row.values
    noise = minus_log2_exponential(words(int(values["seed"]), int(values["offset"]), descriptor.stream, descriptor.vocab)[ids])
    keys = row.b[ids] + noise
    best = int(np.argmax(keys))
    lack = float(keys[best] - keys[np.searchsorted(ids, token)])
    return lack / float(row.eta(token) + row.eta(ids[best])) if lack else 0.0


def _logprob_error(row: RaceRow, token: int | Array, got: np.float64 | Array) -> float:
    """The error relative to the bound, which includes the errors of the masses (in the lse) and of an f32 difference."""
    total = row.sums[-1] / UNIT
    want = (row.b[token] - row.top) * LN2 - math.log(total)
    size = np.abs(row.b[token]) + abs(row.top) + np.abs(want) + 1
    bound = 8 * row.margins.roundoff * size + 2.0**-24 * np.abs(want) + row.spread + row.slack / row.sums[-1] + 2.0**-40
    return float(np.max(np.abs(got - want) / bound)) if np.all(np.isfinite(got)) else WRONG


def _reported(row: RaceRow, got: dict[str, Any]) -> dict[str, float]:
    token, rank = int(got["token"]), int(got["rank"])
    place = int(np.flatnonzero(row.order == token)[0])
    surely, maybe = (int(side[place]) for side in row.before)
    return {
        "rank": 0.0 if surely <= rank <= maybe else WRONG,
        "logprob": _logprob_error(row, token, np.float64(got["logprob"])),
    }


def _top(row: RaceRow, got: dict[str, Any]) -> dict[str, float]:
    tokens, logprobs = got["top_tokens"].astype(np.int64), got["top_logprobs"].astype(np.float64)
    count = min(tokens.size, row.order.size)
    own, rest = tokens[:count], tokens[count:]
    sound = np.all((own >= 0) & (own < row.inside.size)) and np.unique(own).size == count and np.all(rest == -1)
    if not sound or not np.all(np.abs(row.a[own] - row.a[row.order[:count]]) <= row.blur) or not np.all(row.inside[own]):
        return {"top_tokens": WRONG}
    if not row.blur and not np.array_equal(own, row.order[:count]):
        return {"top_tokens": WRONG}
    past = 0.0 if np.all(logprobs[count:] == -np.inf) else WRONG
    return {"top_tokens": 0.0, "top_logprobs": max(past, _logprob_error(row, own, logprobs[:count]))}


def probabilities_error(row: RaceRow, got: Array) -> float:
    """Compares each probability with its fraction of the kept mass; a token that may be kept but need not be may have
    probability 0."""
    may, must = row.kept
    most, least = float(row.masses[may].sum()), float(row.masses[must].sum())
    got = got.astype(np.float64)
    outside = np.ones(got.size, bool)
    outside[row.order[may]] = False
    if np.any(got[outside] != 0) or not np.all(np.isfinite(got)):
        return WRONG
    want, own = row.masses / least, got[row.order]
    bound = want * (2 * row.spread + 2.0**-22 + (row.slack + most - least) / least) + 2.0**-39
    error = np.where(may, np.abs(own - want) / bound, 0.0)
    return float(np.max(np.where(may & ~must & (own == 0), 0.0, error)))
