"""The report page: joined on the SKU, self-contained, and explicit about unknown or wrong results."""

import json
import re
import sqlite3
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from opfacade import errors
from opfacade.cli.main import main
from opfacade.jit.cache.upkeep import Entry
from opfacade.report import ReportSources, chart, html, joined
from opfacade.select import measurements as autotune_table
from opfacade.select.decision import Measured, TuningRow
from opfacade.tools.verify import seal
from tests.bench.test_bench import record  # noqa: F401  fixture

SKU = "attention/paged_decode/cuda/sm_90a/split_kv@1/kv=bf16,o=bf16,q=bf16/strided/group=4,head_dim=128,window=false/g2.0123"
OTHER = SKU.replace("head_dim=128", "head_dim=64")
PEERS = Path(__file__).parents[1] / "data/attention_peers.json"


@pytest.fixture
def timed(record):  # noqa: F811
    """A bench record in which ours has a SKU and leads one of two peers' problems."""
    rows = [row | ({"sku": SKU} if row["impl"].startswith("opfacade") else {}) for row in record["rows"]]
    return record | {"rows": rows}


def proof(sku=SKU, ok=True, key="k" * 64):
    promise = {"bit_stable_on_same_hardware": True, "deterministic": True, "batch_invariant": "composition"}
    claims = {"bound": {"worst_over_hard": 0.4, "wrong": []}, "exact": {"wrong": [] if ok else ["<b>keys</b> forgotten"]}}
    row = {"sku": sku, "promise": promise, "tried": claims, "ok": ok, "cache_key": key}
    found = {"machine": {"device": "a machine"}, "date": "2026-11-21T00:00:00Z", "skus": [row], "ok": ok}
    return found | {"sha256": seal(found)}


def choice(winner=SKU):
    measured = tuple(Measured(sku=s, median_us=t, noise=0.0, samples=9, worst=0.1) for s, t in ((OTHER, 100.0), (SKU, 80.0)))
    return TuningRow(
        key="k", hardware="sm_90a/132/NVIDIA H200", toolchain="t", require="{}", date="2026-11-21", incumbent=OTHER,
        winner=winner, gain=0.2, noise=0.01, measured=measured,
    )  # fmt: skip


KERNELS = {"small": {"registers": 40, "spill_stores": 0}, "kernel": {"registers": 128, "spill_stores": 16}}
ENTRY = Entry("k" * 64, "attention/paged_decode", "sm_90a", 2**20, 5.0, 1.25, KERNELS)


def line_of(sources, sku=SKU):
    return next(line for line in joined(sources)["lines"] if line.sku == sku)


class Page(HTMLParser):
    """Balanced tags, and every address that a browser would fetch."""

    VOID = ("meta", "link", "img", "br", "hr", "input", "circle", "rect", "line", "polyline")

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.words = [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "action")]
        assert tag not in ("script", "iframe", "link", "object")

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def test_what_is_known_of_a_sku_stands_in_one_line(timed):
    counts = {"skus": {SKU: {"runs": 1234}}, "refusals": {}, "counts": {}}
    line = line_of(ReportSources([timed], [proof()], [choice()], [ENTRY], counts))
    assert (line.op, line.kernel, line.facts) == ("paged_decode", "cuda/split_kv@1", ("dtype bf16", "group 4", "head_dim 128"))
    assert (line.promises, line.held, line.worst) == (("bit-stable", "batch-invariant"), True, 0.4)
    assert (line.problems, line.lead) == (3, 80 / 50)
    assert line.share == pytest.approx(20.0 / 780)
    assert line.noise == next(row["noise"] for row in timed["rows"] if row.get("sku") == SKU and "us" in row)
    assert (line.chosen, line.built, line.registers, line.spills, line.runs) == (1, 1.25, 128, 16, 1234)


def test_what_is_not_known_is_none(timed):
    line = line_of(ReportSources(bench=[timed]))
    unknown = (line.promises, line.held, line.worst, line.built, line.registers, line.spills, line.runs)
    assert unknown == (None,) * 7
    assert line.chosen == 0


def test_every_sku_that_any_source_names_has_a_line(timed):
    sources = ReportSources([timed], [proof(sku="a/b/c/d/e@1/f/g/h/g2.1")], [choice()], (), {"skus": {"x": {}}})
    assert {line.sku for line in joined(sources)["lines"]} == {SKU, OTHER, "a/b/c/d/e@1/f/g/h/g2.1", "x"}


def test_the_head_counts_what_matters(timed):
    glance = {
        words: (number, kind)
        for number, words, kind in joined(ReportSources([timed], [proof()], [choice()], [ENTRY]))["glance"]
    }
    assert glance["held to their guarantee"] == ("1 of 1", "good")
    assert glance["problems on which opfacade leads its peers"] == ("1 of 2", "")
    assert glance["wrong outputs, not timed"] == ("1", "bad")
    assert glance["mean gain of 1 tuned choices"] == ("20.0%", "")
    assert glance["kernels in the cache, 1.0 MiB"] == ("1", "")


def test_a_failed_proof_is_shown_as_one():
    assert ("0 of 1", "held to their guarantee", "bad") in joined(ReportSources(verify=[proof(ok=False)]))["glance"]
    text = html(ReportSources(verify=[proof(ok=False)]))
    page = Page(text)
    assert "FAILED" in page.words
    assert "Proven on a machine" in page.words
    assert "0 of 1" in page.words
    assert "<b>keys</b> forgotten" in page.words  # as words, not as markup
    assert "&lt;b&gt;keys" in text


def test_the_page_is_whole_and_fetches_nothing(timed):
    counts = {"skus": {SKU: {"runs": 7}}, "refusals": {}, "counts": {}}
    text = html(ReportSources([timed], [proof()], [choice()], [ENTRY], counts), "A <title>")
    page = Page(text)
    assert page.addresses == []
    assert not re.search(r"https?://|url\(|@import", text)
    assert "A <title>" in page.words
    for words in (
        "a machine",
        "problem 0",
        "split_kv@1",
        "7 of the bound",
        "too small",
        "NVIDIA H200",
        "attention/paged_decode",
    ):
        assert words in page.words


def test_an_empty_report_is_a_page_all_the_same():
    assert "0" in Page(html(ReportSources())).words


@pytest.mark.parametrize("source", ["bench", "verify"])
@pytest.mark.parametrize("wrong", [[], {}, {"machine": {}}, "text"])
def test_what_is_no_record_is_refused(source, wrong):
    with pytest.raises(errors.DescriptorError, match=f"{source} expected a record"):
        html(ReportSources(**{source: [wrong]}))


def test_bars_are_as_long_as_their_times(timed):
    widths = [float(w) for w in re.findall(r'<rect [^>]*width="([\d.]+)"', chart.bars(timed))]
    assert len(widths) == sum("us" in row for row in timed["rows"])
    assert widths[1] / widths[0] == pytest.approx(80 / 50, rel=0.01)
    assert widths[3] / widths[2] == pytest.approx(40 / 50, rel=0.01)


def test_points_lie_under_the_roof(timed):
    picture = chart.roofline(timed)
    roof = [tuple(map(float, point.split(","))) for point in re.search(r'points="([^"]+)"', picture)[1].split()]
    points = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', picture)]
    assert len(points) == 4
    for x, y in points:
        (x0, y0), (x1, y1) = (roof[0], roof[1]) if x < roof[1][0] else (roof[1], roof[2])
        assert y >= y0 + (y1 - y0) * (x - x0) / (x1 - x0) - 0.2  # y increases downward in SVG


def test_a_contender_keeps_its_colour(timed):
    kinds = dict(chart.legend(timed))
    assert list(kinds.values()) == ["opfacade reference/torch", "other"]
    for rows in (chart.bars(timed), chart.roofline(timed)):
        assert {kind for kind in kinds if f'class="{kind}"' in rows} == set(kinds)


def test_a_record_of_an_h200_makes_a_page(tmp_path):
    import importlib.util

    spec = importlib.util.spec_from_file_location("as_record", Path(__file__).parents[2] / "bench/as_record.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.converted(json.loads(PEERS.read_text()))
    assert "NVIDIA H200" in Page(html(ReportSources(bench=[found]))).words
    assert sum("us" in row for row in found["rows"]) == 46


def test_the_command_joins_files_and_this_machine(timed, tmp_path, monkeypatch):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / "cache"))
    autotune_table.store_here().put([choice()])
    (tmp_path / "b.json").write_text(json.dumps(timed))
    (tmp_path / "v.json").write_text(json.dumps(proof()))
    (tmp_path / "t.jsonl").write_text('{"pid": 1, "since": 1, "skus": {"x": {"runs": 5}}, "refusals": {}, "counts": {}}\n')
    files = [f"--bench={tmp_path}/b.json", f"--verify={tmp_path}/v.json", f"--telemetry={tmp_path}/t.jsonl"]
    result = CliRunner().invoke(main, ["report", *files, f"--out={tmp_path}/r.html", "--title=Ours"])
    assert result.exit_code == 0, result.output
    words = Page((tmp_path / "r.html").read_text()).words
    for part in ("Ours", "Tuned choices", "+20.0%", "held", "problem 1"):
        assert part in words
    (tmp_path / "b.json").write_text("{")
    assert CliRunner().invoke(main, ["report", files[0]]).exit_code == 2


def test_a_broken_database_of_measurements_costs_only_its_part(timed, tmp_path, monkeypatch):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    with sqlite3.connect(tmp_path / "tune.db") as database:
        database.execute("CREATE TABLE tuned (a)")
    (tmp_path / "b.json").write_text(json.dumps(timed))
    result = CliRunner().invoke(main, ["report", f"--bench={tmp_path}/b.json", f"--out={tmp_path}/r.html"])
    assert result.exit_code == 0, result.output
    assert "Tuned choices" not in (tmp_path / "r.html").read_text()


def test_every_time_has_its_noise_and_one_that_is_badly_known_is_marked(timed):
    rows = [row | ({"noise": 0.756 if i == 0 else 0.02} if "us" in row else {}) for i, row in enumerate(timed["rows"])]
    page = html(ReportSources(bench=[timed | {"rows": rows}]))
    assert page.count("±75.6% noisy") >= 1
    assert page.count("±2.0%") >= sum("us" in row for row in rows) - 1
    assert "±2.0% noisy" not in page
    assert chart.noise(0.1) == "±10.0%"


def tampered():
    changed = proof(ok=False)
    changed["skus"][0]["ok"] = changed["ok"] = True
    return changed


@pytest.mark.parametrize("record_of", [tampered, lambda: proof() | {"sha256": "f" * 64}, lambda: proof() | {"sha256": None}])
def test_a_proof_that_was_changed_is_refused(record_of):
    with pytest.raises(errors.DescriptorError, match=r"It was changed after it was written.*OPF-P002") as caught:
        joined(ReportSources(verify=[record_of()]))
    assert caught.value.code == "OPF-P002"


def test_the_command_shows_nothing_of_a_changed_proof(tmp_path):
    (tmp_path / "v.json").write_text(json.dumps(tampered()))
    shown = CliRunner().invoke(main, ["report", "--verify", str(tmp_path / "v.json"), "--out", str(tmp_path / "page.html")])
    assert shown.exit_code != 0
    assert "OPF-P002" in shown.output
    assert not (tmp_path / "page.html").exists()


def sealed(**changes):
    changed = {name: value for name, value in (proof() | changes).items() if name != "sha256"}
    return changed | {"sha256": seal(changed)}


WITHOUT_TRIED = {name: value for name, value in proof()["skus"][0].items() if name != "tried"}


@pytest.mark.parametrize("skus", [[5], [{}], [WITHOUT_TRIED], 7, [proof()["skus"][0] | {"tried": [1]}]])
def test_rows_of_another_form_in_a_proof_are_refused(skus):
    with pytest.raises(errors.DescriptorError, match=r"got one of another form: \w+Error.*OPF-P001"):
        joined(ReportSources(verify=[sealed(skus=skus)]))


@pytest.mark.parametrize("change", [{"us": "x"}, {"noise": None, "TBs": "1"}, {"sku": ["a"]}])
def test_rows_of_another_form_in_a_bench_record_are_refused(timed, change):
    rows = [row | (change if "sku" in row else {}) for row in timed["rows"]]
    with pytest.raises(errors.DescriptorError, match=r"got one of another form: \w+Error.*OPF-P001"):
        joined(ReportSources(bench=[timed | {"rows": rows}]))
