"""`opfacade cache`: each command prints what one library function returns."""

import json

import pytest
from click.testing import CliRunner

from opfacade import jit
from opfacade.cli.cache import _age
from opfacade.cli.main import main
from opfacade.jit import cache
from tests.jit.conftest import TINY, _toolkit_home, root, toolkit  # noqa: F401  fixtures


def invoke(*words):
    return CliRunner().invoke(main, ["cache", *map(str, words)])


@pytest.fixture
def entry(toolkit):  # noqa: F811
    """The directory of the only entry in this test's cache."""
    return jit.build(TINY).parent


def test_ls_shows_an_entry(entry):
    out = invoke("ls").output
    for part in (entry.name[:12], "sm_80", "tiny", "built in", "1 entries"):
        assert part in out


@pytest.mark.parametrize(("seconds", "age"), [(-3, "0s"), (42, "42s"), (60, "1m"), (7300, "2h"), (200000, "2d")])
def test_an_age_has_one_unit(seconds, age):
    assert _age(seconds) == age


def test_ls_shows_what_an_entry_was_built_for(toolkit):  # noqa: F811
    jit.build(TINY, label="attention/paged_decode/cuda/sm_80/x")
    assert "    attention/paged_decode/cuda/sm_80/x\n" in invoke("ls").output
    assert json.loads(invoke("ls", "--json").output)[0]["sku"] == "attention/paged_decode/cuda/sm_80/x"


def test_ls_shows_resources(entry):
    meta = json.loads((entry / "meta.json").read_text())
    meta["resources"] = {"my_kernel": {"registers": 40, "spill_stores": 4, "spill_loads": 8, "shared": 1024}}
    (entry / "meta.json").write_text(json.dumps(meta))
    assert "40 registers  12 bytes spilled  1024 bytes shared  my_kernel" in invoke("ls", "--resources").output
    (row,) = json.loads(invoke("ls", "--json").output)
    assert (row["key"], row["name"], row["resources"]) == (entry.name, "tiny", meta["resources"])


def test_verify_ends_with_status_1_if_an_entry_is_broken(entry):
    assert invoke("verify").output == "1 sound, 0 broken\n"
    next(entry.glob("*.so")).write_bytes(b"x")
    result = invoke("verify")
    assert (result.exit_code, result.output) == (1, f"{entry.name}: digests differ\n0 sound, 1 broken\n")


@pytest.mark.parametrize(("words", "kept"), [(("--max-size", "1G"), 1), (("--max-size", "1K"), 0), (("--max-age", "0s"), 0)])
def test_gc_by_size_and_age(entry, words, kept):
    assert invoke("gc", *words).output.startswith(f"{1 - kept} entries removed")
    assert len(cache.shared().published()) == kept


@pytest.mark.parametrize("amount", ["x", "5X", "-1", "1.5G", "9" * 16])
def test_an_amount_that_is_none_is_refused(amount):
    assert "units" in invoke("gc", f"--max-size={amount}").output


def test_clear(entry):
    assert invoke("clear").output == "1 entries removed\n"
    assert cache.shared().published() == []


def test_export_and_import(entry, tmp_path):
    assert invoke("export", tmp_path / "b", "--arch", "sm_80").output.startswith("1 entries")
    refused = invoke("export", tmp_path / "none", "--arch", "sm_90a")
    assert (refused.exit_code, (tmp_path / "none").exists()) == (1, False)
    assert "has no kernel for sm_90a; it has some for: sm_80." in refused.output
    invoke("clear")
    assert invoke("export", tmp_path / "none").exit_code == 1
    assert invoke("import", tmp_path / "b").output.startswith("1 entries imported")
    assert jit.is_built(TINY)


def test_a_bad_bundle_is_a_message_and_status_2(entry, tmp_path):
    (tmp_path / "b").write_text("not a tar")
    result = invoke("import", tmp_path / "b")
    assert result.exit_code == 2
    assert "not a sound bundle" in result.output
