"""Recorded properties of tensor cores that the matmul kernels depend on."""

import json
import re

import pytest

from bench import matmul_probes, records

RECORD = json.loads((records.RESULTS / "matmul_probes.json").read_text())
CONTROL = "control_steps_swapped"


@pytest.mark.parametrize("found", RECORD["bits"], ids=lambda found: found["type"])
def test_every_instruction_gave_the_same_bits_and_another_order_did_not(found):
    assert found["tiles"] >= 1_000_000
    assert found["nonzero"] > 0.8 * found["elements"]
    assert {name for name, count in found["differ"].items() if count} == {CONTROL}
    assert {name for name in found["differ"] if name.startswith("ss_")} == {f"ss_{n}" for n in matmul_probes.WIDTHS}
    assert not any(found["differ_exact"].values())


def test_the_instructions_are_those_of_each_width_and_layout(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["matmul_probes", "--dry"])
    matmul_probes.main()
    text = capsys.readouterr().out
    for n in matmul_probes.WIDTHS:
        assert text.count(f".m64n{n}k16.f32.bf16.bf16 ") == 1 + (n in matmul_probes.IN_REGISTERS) + 3 * (n == 64)
        assert text.count(f".m64n{n}k32.f32.e4m3.e4m3 ") == 1 + (n in matmul_probes.IN_REGISTERS)
    flags = set(re.findall(r"p, 1, 1(?:, (\d, \d))?;", text))
    assert {"0, 0", "0, 1", "1, 0", "1, 1"} <= flags
