"""bench/clamp.py chooses its kernels without a GPU: the kernels of a problem differ only in the clamps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def ran(*more):
    return subprocess.run([sys.executable, "-m", "bench.clamp", *more], cwd=ROOT, capture_output=True, text=True)


def test_both_kernels_of_each_problem_are_chosen():
    done = ran("--dry")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    families = {row["clamped"].split("/")[1] for row in rows}
    assert families == {"paged_prefill", "paged_decode", "ragged_prefill", "paged_kv_append", "mla_decode"}
    for row in rows:
        plain, clamped = (row[name].rpartition("/")[0] for name in ("plain", "clamped"))
        assert clamped.replace("safe_pages=true", "").replace(",,", ",").rstrip(",") == plain, row


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_timed_and_no_record_written():
    before = (ROOT / "bench/results/clamp.json").read_bytes()
    done = ran()
    assert (done.returncode, done.stderr.strip()) == (1, "needs a GPU; --dry needs none")
    assert (ROOT / "bench/results/clamp.json").read_bytes() == before
