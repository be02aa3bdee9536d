"""The host library accepts a call with the widest bundle, and the host knows the constants of the kernels."""

import re

import pytest

from opfacade import Target
from opfacade.backends.cuda.host import direct
from opfacade.backends.cuda.sampling import sample, split, top_k
from opfacade.plans.sampling import EXAMPLES
from opfacade.select.registry import candidates_for
from tests import emulator

SM_90A = Target.parse("sm_90a")


@pytest.mark.parametrize("descriptor", EXAMPLES, ids=lambda d: f"{d.op}-{d.digest()[:6]}")
def test_operands_and_scalars_fit(descriptor, monkeypatch):
    seen = []
    launched = "opfacade.backends.cuda.support.launcher"
    monkeypatch.setattr(launched, lambda spec, d, sku, allow, workspace, scalars: seen.append((d, scalars)))
    (candidate,) = (c for c in candidates_for(type(descriptor)) if c.backend == "cuda")
    candidate.launcher(descriptor, SM_90A, candidate.sku(descriptor, SM_90A), False)
    ((asked, scalars),) = seen
    direct.require_fit(asked, scalars)


def test_limits_are_those_of_the_host_library():
    text = (emulator.ROOT / "csrc/host/call_signature.h").read_text()
    found = {name: int(value) for name, value in re.findall(r"constexpr int (kMax\w+) = (\d+);", text)}
    assert found == {"kMaxFields": direct._MAX_FIELDS, "kMaxRank": direct._MAX_RANK, "kMaxScalars": direct._MAX_SCALARS}


def test_the_host_has_the_constants_of_the_kernels():
    found = {}
    for line in (emulator.ROOT / "kernels/sampling/sample_params.h").read_text().splitlines():
        if line.startswith("constexpr int "):
            for one in line.removeprefix("constexpr int ").partition(";")[0].split(", "):
                name, _, value = one.partition(" = ")
                found[name] = eval(value, {"OPF_SAMPLE_THREADS": 512}, dict(found))  # sums and products of the constants above
    assert found["kFilterShared"] == sample.BESIDE_LOGITS
    assert (found["kHeldShared"], found["kMostTopK"], found["kMostSorted"]) == (top_k._HELD, top_k._LISTED, top_k._SORTED)
    assert found["kMostCtas"] == split._MAX_CTAS
