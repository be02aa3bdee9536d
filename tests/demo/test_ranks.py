"""`python -m examples.demo --ranks`: processes that draw the same tokens as one rank, or report a difference."""

import subprocess
import sys

from examples.demo import ranks
from opfacade import Target
from tests.support.local_ranks import on_ranks


def test_two_processes_draw_the_tokens_of_one_rank():
    """Runs the command, like a user."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--ranks", "2"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 steps of 4 requests on 2 ranks: the tokens of one rank" in done.stdout


def test_it_runs_on_cpus_on_a_machine_with_a_gpu(monkeypatch):
    monkeypatch.setattr(Target, "current", lambda *_: Target.parse("sm_90a"))
    drawn = ranks.generate(ranks.Ranks(ranks.Weights.drawn(7), 1, 0), None)
    assert len(drawn) == 8


def test_three_ranks_draw_them_too_and_other_weights_draw_others():
    weights, others = ranks.Weights.drawn(7), ranks.Weights.drawn(8)
    alone = ranks.generate(ranks.Ranks(weights, 1, 0), None)

    def call(group):
        group.reserve = lambda plans: None
        return ranks.generate(ranks.Ranks(weights, 3, group.rank), group)

    assert on_ranks(3, call) == [alone] * 3
    assert ranks.generate(ranks.Ranks(others, 1, 0), None) != alone
