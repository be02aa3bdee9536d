"""The record of the host time of plan() and of a call of the adapters."""

import json

from bench import compat


def test_a_record_has_each_wrapper_and_its_times(tmp_path, capsys):
    out = tmp_path / "compat.json"
    compat.main(["--batch", "2", "3", "--number", "1", "--commit", "abc1234", "--out", str(out)])
    record = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == record
    assert record["machine"]["commit"] == "abc1234"
    assert set(record["us"]) == {"2", "3"}
    for rows in record["us"].values():
        assert set(rows["ours"]) == {"decode", "paged_prefill", "ragged_prefill"}
        assert all(set(row) == {"plan_device", "plan_host"} for row in rows["ours"].values())
        assert set(rows["calls"]["decode"]) == {"call_seen", "call_new"}
        assert all(time > 0 for row in (*rows["ours"].values(), *rows["calls"].values()) for time in row.values())
