"""Digests stored with the ids of a manifest: a comment changes none, code and compilers do, and `check` names the cause."""

import json
import shutil

import pytest
from click.testing import CliRunner

from opfacade import SkuManifest, Target, errors, jit
from opfacade.cli.main import main
from opfacade.jit import codegen
from opfacade.select.binaries import SkuBinary, standings
from opfacade.select.registry import examples

SM90 = Target.parse("sm_90a")
MERGE = next(e for e in examples() if e.op == "merge_states")
KERNEL = "kernels/cascade/merge_states.cuh"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A copy of the sources that a test may edit."""
    for name in ("kernels", "csrc"):
        shutil.copytree(codegen.source_root() / name, tmp_path / "root" / name)
    monkeypatch.setenv("OPFACADE_SOURCE_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "root"


def frozen():
    return SkuManifest.freeze([MERGE], target=SM90)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_manifest_has_the_digests_of_what_is_compiled_and_of_nothing_else():
    found = SkuManifest.freeze(examples(), target=SM90)
    assert {b.sku for b in found.binaries} == {sku for sku in found.skus if "/cuda/" in sku}
    assert all(len(b.code) == 64 for b in found.binaries)
    of_op = {(b.sku.split("/")[1], b.code) for b in found.binaries}  # a named op may have the kernel of its engine
    assert len(of_op) == len(found.binaries)
    assert SkuManifest.freeze([MERGE], target=Target.cpu()).binaries == ()


def test_a_comment_or_an_empty_line_moves_no_digest(root):
    before = frozen()
    text = (root / KERNEL).read_text()
    (root / KERNEL).write_text("/* words\n of two lines */\n" + text.replace("\n", "  // a word\n\n", 1))
    assert frozen() == before


def test_code_in_a_header_moves_the_digest_and_not_the_id(root):
    before = frozen()
    edit(root / "kernels/common/merge.cuh", "namespace", "struct Unused {};\nnamespace")
    after = frozen()
    assert after.skus == before.skus
    assert after.binaries[0].code != before.binaries[0].code
    found = before.diff(after)
    assert found
    assert f"same promise, other code: {before.skus[0]}" in str(found)
    assert [s.word for s in before.standings(after)] == ["other binary"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('x = "// kept";  // gone', 'x = "// kept";'),
        ('char q = \'"\'; // "gone"', "char q = '\"';"),
        ("a /* gone\n // gone */ b", "a   b"),
        ('s = "\\"/*kept*/";', 's = "\\"/*kept*/";'),
        ("\n\n   a;\n\n\tb;\n", "a;\nb;"),
    ],
)
def test_only_comments_and_white_space_go(text, code):
    assert codegen._code(text) == code


SKU = frozen().skus[0]
REVISED = SKU.replace("@1/", "@2/")
ONE = SkuBinary(sku=SKU, code="a" * 64, compilers="b" * 64)


@pytest.mark.parametrize(
    ("allowed", "known", "now", "words"),
    [
        ([SKU], [ONE], [ONE], "same binary: "),
        ([SKU], [ONE], [ONE.model_copy(update={"code": "c" * 64})], "other binary: {} (same promise, other code)"),
        ([SKU], [ONE], [ONE.model_copy(update={"compilers": "c" * 64})], "other binary: {} (same promise, other compilers)"),
        (
            [SKU],
            [ONE],
            [ONE.model_copy(update={"code": "c" * 64, "compilers": "c" * 64})],
            "other binary: {} (same promise, other code and compilers)",
        ),
        ([SKU], [ONE], [ONE.model_copy(update={"compilers": ""})], "binary not known: {} (the same code"),
        ([SKU], [], [ONE], "binary not known: {} (the manifest has no digests of it)"),
        ([SKU], [], [], "binary not known: {} (nothing is compiled)"),
        ([REVISED], [], [ONE], "other revision: {} (the manifest has @2)"),
        ([], [], [ONE], "not allowed: {}"),
    ],
)
def test_a_sku_stands_to_a_manifest_in_one_of_five_ways(allowed, known, now, words):
    (found,) = standings(allowed, known, [SKU], now)
    assert str(found).startswith(words.format(SKU))
    assert found.allowed == (SKU in allowed)


def check(manifest, tmp_path, *more):
    manifest.save(tmp_path / "fleet.json")
    (tmp_path / "work.json").write_text(MERGE.model_dump_json())
    words = ["manifest", "check", str(tmp_path / "fleet.json"), str(tmp_path / "work.json"), "--target=sm_90a", *more]
    return CliRunner().invoke(main, words)


def test_check_tells_the_same_binary_from_another_and_from_another_revision(root, tmp_path):
    before = frozen()
    same = check(before, tmp_path, "--same-binary")
    assert same.output == "1 SKUs allowed, 0 selected that are not; 1 of 1 are the same binary\n"
    assert same.exit_code == 0
    edit(root / "kernels/common/merge.cuh", "namespace", "struct Unused {};\nnamespace")
    other = check(before, tmp_path)
    assert f"other binary: {SKU} (same promise, other code)" in other.output
    assert other.exit_code == 0
    assert check(before, tmp_path, "--same-binary").exit_code == 1
    revised = check(SkuManifest(skus=(REVISED,)), tmp_path)
    assert f"other revision: {SKU} (the manifest has @2)" in revised.output
    assert revised.exit_code == 1


def test_another_compiler_is_another_binary(root, monkeypatch):
    before = frozen()
    monkeypatch.setattr(jit, "compiler_digest", lambda spec: "0" * 64)
    assert [s.why for s in before.standings(frozen())] == ["same promise, other compilers"]


def test_a_manifest_without_digests_is_read_and_one_with_wrong_ones_is_not(tmp_path):
    (tmp_path / "old.json").write_text(json.dumps({"skus": [SKU]}))
    assert SkuManifest.load(tmp_path / "old.json").binaries == ()
    for binaries in ([{"sku": REVISED, "code": "a" * 64}], [{"sku": SKU, "code": "a"}], [{"sku": SKU, "code": "a" * 64}] * 2):
        (tmp_path / "bad.json").write_text(json.dumps({"skus": [SKU], "binaries": binaries}))
        with pytest.raises(errors.DescriptorError, match="binaries"):
            SkuManifest.load(tmp_path / "bad.json")
