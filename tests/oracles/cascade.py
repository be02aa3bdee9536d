"""merge_states, from docs/ops/cascade.md."""

import itertools

import torch

from tests.oracles.near import Near, wide


def merged(o, lse):
    """(o, lse) of states along axis 0, as Near. An exponent errs by the size of its logarithms, and so does lse."""
    # One more empty state, so that a row without states gives an empty one.
    o, lse = (torch.cat([one, one.new_full((1, *one.shape[1:]), -torch.inf)]) for one in (o, lse))
    live = lse > -torch.inf
    total = lse.logsumexp(0)
    weight = torch.where(live, (lse - total).exp(), 0.0)[..., None]
    terms = torch.where(live[..., None], o, 0.0) * weight
    far = torch.where(live, lse.abs(), 0.0).amax(0) + 1
    size = torch.where(total > -torch.inf, far + total.abs(), 1.0)
    return Near(terms.sum(0), terms.abs().sum(0) * size[..., None]), Near(total, size)


def _states(problem, args):
    if problem.states != "list":
        return wide(args.states_o), wide(args.states_lse)
    pairs = [(getattr(args, f"state_o_{i}"), getattr(args, f"state_lse_{i}")) for i in range(problem.num_states)]
    return tuple(torch.stack([wide(pair[place]) for pair in pairs]) for place in (0, 1))


def expected(problem, args):
    o, lse = _states(problem, args)
    if problem.states == "ragged":
        ends = args.states_indptr.clamp(0, problem.num_states).tolist()
        rows = [merged(o[a:b], lse[a:b]) for a, b in itertools.pairwise(ends)]
        got = [Near(torch.stack([r[i].value for r in rows]), torch.stack([r[i].size for r in rows])) for i in (0, 1)]
    else:
        got = list(merged(o, lse))
    if not problem.in_place:
        return dict(zip(("o", "lse"), got, strict=True))
    found = {}
    for name, old, one in (("states_o", args.states_o, got[0]), ("states_lse", args.states_lse, got[1])):
        value, size = wide(old).clone(), torch.zeros(old.shape, dtype=torch.float64)
        value[0], size[0] = one.value, one.size
        found[name] = Near(value, size)
    return found
