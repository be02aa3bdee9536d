"""The command line at first use: messages for bad input, output that fits a narrow terminal, progress of long commands."""

import json
import re

import pytest
from click.testing import CliRunner

from opfacade import Plan, Target
from opfacade.base.progress import Pace
from opfacade.cli.main import main
from opfacade.errors import DescriptorError
from opfacade.plans.attention import BatchPagedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.select.manifest import SkuManifest, _chosen
from opfacade.select.registry import examples, load_descriptor
from opfacade.tools import verify

ONE = next(e for e in examples() if e.op == "paged_decode").model_dump_json()


def invoke(*words, text=None, **more):
    return CliRunner().invoke(main, [*map(str, words)], input=text, **more)


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("not json", "OPF-D006", "got 'not json': Expecting value (line 1, column 1)"),
        ('{"op": "paged_decode",\n  nonsense}', "OPF-D006", "(line 2, column 3)"),
        ('{"a": 1}', "OPF-D020", "op expected the name of an operator, got a. op is one of "),
        ('{"descriptor": {}}', "OPF-D020", 'a line of a recording: take its "descriptor"'),
        ('{"op": "paged_decod"}', "OPF-D020", "got 'paged_decod'. Did you mean paged_decode?"),
        ('{"op": 3}', "OPF-D020", "got 3."),
        ("3", "OPF-D020", "a JSON object with the field op, got 3"),
        (f"{ONE}\n{ONE}\n", "OPF-D021", "one descriptor, got 2 lines with one each. `opfacade warmup`"),
        (f"[{ONE}, {ONE}]", "OPF-D021", "one descriptor, got an array of 2"),
        ("one.json", "OPF-D006", "That is the name of a file: pass what is in it."),
    ],
)
def test_what_is_no_descriptor_says_what_it_is(text, code, told):
    with pytest.raises(DescriptorError) as caught:
        load_descriptor(text)
    assert (caught.value.code, told in str(caught.value)) == (code, True), caught.value
    result = invoke("explain", "-", text=text)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.startswith("standard input: load_descriptor: ")
    assert "b'" not in result.stderr


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_list_fits_eighty_columns(target):
    text = invoke("list", "--target", target, env={"COLUMNS": "80"}).stdout  # a warning about the compiler goes to stderr
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^  cuda/split_kv: [34] of 4 examples$", text, re.M)
    assert "paged_kv_append" in text
    assert "examples" in invoke("list", env={"COLUMNS": "200"}).stdout.splitlines()[2]


def test_a_difference_of_manifests_has_headers_and_says_each_fact_once(tmp_path):
    append, decode = (next(e for e in examples() if e.op == op) for op in ("paged_kv_append", "paged_decode"))
    old, other, gone = (
        _chosen(d, *p).sku.id for d, p in ((decode, _on("sm_90a")), (append, _on("sm_90a")), (append, _on("cpu")))
    )
    new = re.sub(r"split_kv@(\d+)", lambda found: f"split_kv@{int(found[1]) + 1}", old)
    SkuManifest(skus=tuple(sorted((old, gone)))).save(tmp_path / "old.json")
    SkuManifest(skus=tuple(sorted((new, other)))).save(tmp_path / "new.json")
    result = invoke("manifest", "diff", tmp_path / "old.json", tmp_path / "new.json")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == "1 changed, 1 added, 1 removed"
    assert lines[1] == f"changed: paged_decode on sm_90a, cuda/{old.split('/')[4]}"
    assert lines[2].startswith("  impl: split_kv@")
    assert lines[3:] == ["added:", f"  {other}", "removed:", f"  {gone}"]


def _on(target):
    from opfacade import Preference

    return Preference(), Target.parse(target)


def test_a_report_of_nothing_is_a_usage_error(tmp_path):
    result = invoke("report", "--no-tuned", "--no-cache", "--out", tmp_path / "x.html")
    assert result.exit_code == 2
    assert "nothing to report: pass --bench" in result.stderr
    assert not (tmp_path / "x.html").exists()


def test_the_pace_is_that_of_what_is_done():
    times = iter([0.0, 10.0, 20.0, 45.0])
    pace = Pace(4, clock=lambda: next(times))
    assert pace.step() == "1 of 4, 10 s, about 30 s left"
    assert pace.step(2) == "3 of 4, 20 s, about 7 s left"
    assert pace.step() == "4 of 4, 45 s"


def test_quick_proofs_of_a_file_are_made_small_on_a_cpu(monkeypatch):
    """The README's example took eleven minutes at its original sizes."""
    pool = PagedKvCacheDescriptor(num_total_pages=512, page_size=16, num_kv_heads=8, head_dim=128, dtype="bf16", layout="HND")
    large = BatchPagedPrefillDescriptor(batch_size=3, total_num_rows=700, num_qo_heads=32, causal=True, paged_kv=pool)
    tried, said = [], []

    def proven(subject, how, say):
        tried.append(subject)
        return {"ok": True, "sku": subject.plan.sku.id}

    monkeypatch.setattr(verify, "_proven", proven)
    record = verify.verify(quick=True, backend="reference", descriptors=[large], say=said.append)
    [subject] = tried
    assert subject.plan.sku.id == Plan.select(large, target=Target.cpu()).sku.id == record["skus"][0]["sku"]
    assert (subject.descriptor.total_num_rows, subject.descriptor.paged_kv.num_total_pages) == (24, 24)
    assert said[0] == "1 SKUs to prove, about 10 s on two cores"
    assert said[-1].strip().startswith("1 of 1, ")
    verify.verify(backend="reference", descriptors=[large], say=said.append)
    assert tried[-1].descriptor == large


def test_warmup_and_tune_say_how_far_they_are():
    text = json.dumps([json.loads(ONE)])
    assert "1 problems, 0 kernels" in invoke("warmup", "-", "--target", "cpu", text=text).stderr
    assert "1 of 1, " in invoke("tune", "-", text=text).stderr
