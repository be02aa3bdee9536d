"""Pictures of records of rows and maps: each problem with its fastest peer, as a fraction of copy speed."""

import argparse
import json
from pathlib import Path

import pytest

from bench import maps, pictures, rows

ROOT = Path(__file__).resolve().parents[2]
MOST = 100_000  # maximum bytes of a picture in docs


def row(problem, who, us, key="clean_us", size=4_000_000):
    return {"problem": problem, "who": who, "bytes": size, key: {"median": us}}


RECORD = {
    "machine": {"device": "a GPU", "date": "2026-01-02", "commit": "abc"},
    "ceilings": {"copy_TBs": 4.0},
    "rows": [
        row("rmsnorm 8 x 4", "opfacade", 2.0),
        row("rmsnorm 8 x 4", "torch eager", 8.0),
        row("rmsnorm 8 x 4", "torch.compile", 4.0),
        row("rmsnorm 8 x 4", "flashinfer", 1.0, key="graph_us"),  # timed in another way: not a peer of this row
        row("softmax f32 8 x 4", "opfacade", 1.0, key="graph_us"),
        {"problem": "softmax f32 8 x 4", "who": "torch eager", "bytes": 4_000_000, "refused": "its result is not ours"},
        row("softmax f32 9 x 4", "opfacade", 4.0),
    ],
}


def options(*words):
    parser = argparse.ArgumentParser()
    pictures.add_options(parser)
    return parser.parse_args(list(words))


def test_points_are_ours_and_the_fastest_peers_of_the_same_timing():
    assert pictures.points(RECORD, "rmsnorm ") == [
        [pictures.Point(4_000_000, 0.5, "opfacade", False), pictures.Point(4_000_000, 0.25, "torch.compile", False)]
    ]
    assert pictures.points(RECORD, "softmax ")[0] == [pictures.Point(4_000_000, 1.0, "opfacade", True)]


@pytest.mark.parametrize("kind", [rows, maps], ids=["rows", "maps"])
def test_a_panel_shows_each_problem_of_the_record_once(kind):
    name = kind.__name__.rpartition(".")[2]
    problems = {one["problem"] for one in json.loads((ROOT / f"bench/results/{name}.json").read_text())["rows"]}
    for problem in problems:
        record = RECORD | {"rows": [row(problem, "opfacade", 1.0)]}
        assert sum(len(pictures.points(record, pattern)) for _, pattern in kind.PANELS) == 1, problem


def test_problems_of_the_same_bytes_stand_apart():
    assert pictures._apart([10, 100, 10], 4.0) == [5.0, 100.0, 20.0]


def test_a_small_record_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "r.json").write_text(json.dumps(RECORD))
    at = tmp_path / "p.png"
    assert pictures.shown(options("--show", str(tmp_path / "r.json"), "--picture", str(at)), rows.PANELS)
    assert at.read_bytes().startswith(b"\x89PNG")
    assert 5_000 < at.stat().st_size < MOST


def test_without_a_record_there_is_nothing_to_draw():
    assert not pictures.shown(options(), rows.PANELS)
    with pytest.raises(SystemExit, match="--show needs --picture"):
        pictures.shown(options("--show", "r.json"), rows.PANELS)


@pytest.mark.parametrize("name", ["rows", "maps"])
def test_pictures_of_docs_are_small(name):
    assert (ROOT / f"docs/ops/{name}.png").stat().st_size < MOST
