"""A SKU id determines the output bits: the bits of emulated kernels are recorded, and a change of arithmetic needs a new
revision."""

from dataclasses import replace

import pytest

from opfacade import Target
from opfacade.tools import catalogue
from tests import emulator
from tests.support import fingerprint_problems, fingerprints
from tests.support.assemblers import any_assembler
from tests.support.fingerprints import EMULATOR, Fingerprint, merged, taken, wrong

pytestmark = emulator.needed
COMMAND = fingerprints.command(EMULATOR)
with any_assembler():
    PROBLEMS = fingerprint_problems.emulated()
    IMPLEMENTATIONS = sorted({subject.plan.sku.impl for subject, _ in PROBLEMS.values()})
MERGE = "kernels/cascade/merge_states.cuh"
SUM = "sum[i] += weight * part[j].at(i);"
OLD = Fingerprint("p", "attention/op/cuda/sm_90a/split_kv@1/kv=bf16/strided/-/g2.0", "in", "out")


@pytest.fixture(autouse=True)
def _any_assembler():
    with any_assembler():
        yield


def take(name):
    subject, lengths = PROBLEMS[name]
    return taken(name, subject, lengths)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_sku_id_has_its_recorded_bits(name):
    facts, found = fingerprints.read(EMULATOR)
    new, here = take(name), fingerprints.host()
    old = next((one for one in found if (one.problem, one.sku) == (new.problem, new.sku)), None)
    if old and here != facts and (old.inputs, old.bits) != (new.inputs, new.bits):
        pytest.skip(f"recorded on {facts}, which draws other inputs or has another libm than {here}")
    assert not (why := wrong(found, new, COMMAND)), why


def test_every_implementation_is_recorded_with_its_current_revision():
    found = {(one.sku.split("/")[1], one.sku.split("/")[4]) for one in fingerprints.read(EMULATOR)[1]}
    alone = [row for row in catalogue.candidates(Target.parse("sm_90a")) if row.impl not in ("nccl", "peers")]  # not over ranks
    rows = [row for row in alone if row.backend == "cuda"]
    plans = {(subject.plan.sku.op, f"{subject.plan.sku.impl}@{subject.plan.sku.revision}") for subject, _ in PROBLEMS.values()}
    assert {(row.op, row.impl) for row in rows} <= {(op, name.partition("@")[0]) for op, name in plans}
    assert plans <= found


def test_a_change_of_arithmetic_without_a_new_revision_is_detected():
    """A factor that differs from 1 by about one ulp of f32 stays within each bound but changes the bits."""
    _, found = fingerprints.read(EMULATOR)
    with emulator.edited(MERGE, (SUM, "sum[i] += weight * part[j].at(i) * 1.0000002f;")):
        new = take("merge-odd")
    why = wrong(found, new, COMMAND)
    assert "merge_states/cuda" in why
    assert "set the revision of cuda/warp_rows to 2 in opfacade/backends/cuda/cascade.py" in why
    with pytest.raises(ValueError, match="set the revision of cuda/warp_rows to 2"):
        merged(found, [new])


def test_a_changed_comment_needs_no_new_revision():
    _, found = fingerprints.read(EMULATOR)
    with emulator.edited(MERGE, (SUM, f"{SUM}  // in the order of the states")):
        assert wrong(found, take("merge-odd"), COMMAND) == ""


def test_new_revisions_and_inputs_are_recorded_and_old_revisions_are_kept():
    revised = replace(OLD, sku=OLD.sku.replace("@1", "@2"), bits="other")
    assert "no fingerprint of" in wrong([OLD], revised, COMMAND)
    assert merged([OLD], [revised]) == [OLD, revised]
    redrawn = replace(OLD, inputs="other", bits="other")
    assert "other inputs" in wrong([OLD], redrawn, COMMAND)
    assert merged([OLD], [redrawn]) == [redrawn]


def test_recording_gpu_bits_keeps_the_emulator_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "FILE", tmp_path / "fingerprints.json")
    fingerprints.write(EMULATOR, {"torch": "2"}, [OLD])
    fingerprints.write("a GPU", {"torch": "3"}, [])
    assert fingerprints.read(EMULATOR) == ({"torch": "2"}, [OLD])
    assert fingerprints.read("another GPU") == (None, [])
    with pytest.raises(ValueError, match="an id keeps its bits"):
        merged([OLD], [replace(OLD, bits="other")])


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_the_source_of_each_revision_is_known(impl):
    assert fingerprints.places(impl)
