"""Locked SKUs: frozen from what is selected, compared, and enforced by the environment and by a preference."""

import errno
import json
import re
import warnings

import pytest
from click.testing import CliRunner

from opfacade import Plan, Preference, SkuManifest, Target, errors, explain
from opfacade.cli.main import main
from opfacade.core.sku import is_sku_id
from opfacade.select.in_force import in_force
from opfacade.select.manifest import unlisted
from opfacade.select.registry import examples
from opfacade.select.sku_differences import differences

SM90 = Target.parse("sm_90a")
DECODE = next(e for e in examples() if e.op == "paged_decode")
OFF = DECODE.model_copy(update={"kv_split": "off"}).revalidated()


@pytest.fixture
def locked(tmp_path, monkeypatch):
    """A current manifest that allows the SKU selected for DECODE."""
    path = tmp_path / "fleet.json"
    SkuManifest.freeze([DECODE], target=SM90).save(path)
    monkeypatch.setenv("OPFACADE_REQUIRE_SKU", str(path))
    return path


def chosen(descriptor, prefer=None):
    return explain(descriptor, prefer, SM90).chosen.sku.id


def test_freeze_lists_what_is_selected_each_once():
    found = SkuManifest.freeze([DECODE, OFF, DECODE], target=SM90)
    assert found.skus == tuple(sorted({chosen(DECODE), chosen(OFF)}))
    assert len(found.skus) == 2
    assert all(map(is_sku_id, found.skus))


def test_a_manifest_survives_its_file(tmp_path):
    found = SkuManifest.freeze(examples(), target=SM90, note="all examples")
    found.save(tmp_path / "m.json")
    assert SkuManifest.load(tmp_path / "m.json") == found


def test_what_is_locked_is_selected_and_nothing_else(locked):
    assert Plan._select(DECODE, None, SM90).sku.id == chosen(DECODE)
    with pytest.raises(errors.UnsupportedError, match="OPF-S016") as caught:
        Plan._select(OFF, None, SM90)
    refused = {issue.argument for issue in caught.value.issues if issue.code == "OPF-S016"}
    assert refused == {"cuda/split_kv: OPFACADE_REQUIRE_SKU", "reference/torch: OPFACADE_REQUIRE_SKU"}
    assert str(locked) in str(caught.value)


def test_explain_says_what_select_does_under_a_manifest(locked):
    explanation = explain(OFF, target=SM90, pins=in_force(OFF, Preference(), SM90))
    assert explanation.chosen is None
    assert all(any(r.code == "OPF-S016" for r in option.reasons) for option in explanation.options)


def test_the_explain_command_says_so_too(locked, tmp_path):
    (tmp_path / "off.json").write_text(OFF.model_dump_json())
    assert "OPF-S016" in CliRunner().invoke(main, ["explain", str(tmp_path / "off.json"), "--target=sm_90a"]).output


@pytest.mark.parametrize("nothing", [[], (), iter(())], ids=["list", "tuple", "iterator"])
def test_nothing_is_not_frozen(nothing):
    """A manifest without a SKU would lock out every kernel of a fleet."""
    with pytest.raises(errors.ArgumentError, match=r"descriptors expected at least one descriptor, got none") as caught:
        SkuManifest.freeze(nothing, target=SM90)
    assert caught.value.code == "OPF-M003"


def test_freezing_is_not_bound_by_the_manifest_in_force(locked):
    assert SkuManifest.freeze([OFF], target=SM90).skus[0] != SkuManifest.load(locked).skus[0]


def test_a_changed_manifest_is_read_again(locked):
    SkuManifest.freeze([DECODE, OFF], target=SM90).save(locked)
    assert Plan._select(OFF, None, SM90).sku.id in SkuManifest.load(locked).skus


def older(sku):
    head, _, promise = sku.rpartition("/")
    return f"{head}/g.{promise.removeprefix('g2.')}"


def test_a_manifest_of_the_older_form_says_so(locked, tmp_path):
    text = locked.read_text().replace("/g2.", "/g.")
    (tmp_path / "old.json").write_text(text)
    words = r"a SKU id of an older form, which no kernel has now; `opfacade manifest freeze` writes the ids of today"
    with pytest.raises(errors.DescriptorError, match=words):
        SkuManifest.load(tmp_path / "old.json")
    (tmp_path / "work.json").write_text(DECODE.model_dump_json())
    for command in (["diff", tmp_path / "old.json", locked], ["check", tmp_path / "old.json", tmp_path / "work.json"]):
        shown = CliRunner().invoke(main, ["manifest", *map(str, command)])
        assert shown.exit_code != 0
        assert "a SKU id of an older form" in shown.output


def test_an_older_id_that_is_required_or_forbidden_says_so(monkeypatch):
    sku = older(Plan._select(OFF, None, SM90).sku.id)
    with pytest.raises(errors.UnsupportedError, match="It is a SKU id of an older form"):
        Plan._select(OFF, Preference(forbid=(sku,)), SM90)
    monkeypatch.setenv("OPFACADE_REQUIRE_SKU", sku)
    with pytest.raises(errors.SettingError, match=r"a SKU id of an older form.*OPF-E001"):
        Plan._select(OFF, None, SM90)


def test_one_sku_id_may_be_required_without_a_file(monkeypatch):
    monkeypatch.setenv("OPFACADE_REQUIRE_SKU", Plan._select(OFF, None, SM90).sku.id)
    assert Plan._select(OFF, None, SM90).sku.id
    with pytest.raises(errors.UnsupportedError, match="OPF-S016"):
        Plan._select(DECODE, None, SM90)


@pytest.mark.parametrize("content", [None, "", "{", '{"skus": ["b"]}', '{"skus": [], "more": 1}', "\x00" * 50])
def test_a_lock_that_cannot_be_read_locks_everything_out(tmp_path, monkeypatch, content):
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("OPFACADE_REQUIRE_SKU", str(path))
    with pytest.raises(errors.SettingError, match="OPFACADE_REQUIRE_SKU"):
        Plan._select(DECODE, None, SM90)


def test_a_preference_can_carry_the_manifest():
    prefer = SkuManifest.freeze([DECODE], target=SM90).enforce(Preference(require="deterministic"))
    assert prefer.require.deterministic
    assert Plan.select(DECODE, prefer, SM90).sku.id == chosen(DECODE)
    with pytest.raises(errors.UnsupportedError, match="OPF-S015"):
        Plan.select(OFF, prefer, SM90)


def test_a_manifest_never_allows_what_the_preference_leaves_out():
    manifest = SkuManifest.freeze([DECODE, OFF], target=SM90)
    mine, other = chosen(DECODE), chosen(OFF)
    prefer = manifest.enforce(Preference(allow=[mine, "no/such/sku"], backend="cuda"))
    assert (prefer.allow, prefer.backend) == ((mine,), "cuda")
    with pytest.raises(errors.UnsupportedError, match="OPF-S015"):
        Plan.select(OFF, prefer, SM90)
    for nothing in ([], ["no/such/sku"]):
        assert manifest.enforce(Preference(allow=nothing)).allow == ()
        with pytest.raises(errors.UnsupportedError, match="OPF-S015"):
            Plan.select(DECODE, manifest.enforce(Preference(allow=nothing)), SM90)
    one = SkuManifest.freeze([DECODE], target=SM90)
    assert one.enforce(Preference(allow=[other])).allow == one.enforce(manifest.enforce(Preference(allow=[other]))).allow == ()
    assert manifest.enforce(one.enforce()).allow == one.enforce(manifest.enforce()).allow == (mine,)
    assert manifest.enforce(Preference(pin=other)).pin == other


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda m: m.enforce("cuda"), "OPF-S032"),
        (lambda m: SkuManifest.freeze([DECODE], "cuda", SM90), "OPF-S032"),
        (lambda m: SkuManifest.freeze([DECODE], target="sm_90a"), "OPF-S033"),
        (lambda m: SkuManifest.freeze(5), "OPF-S030"),
        (lambda m: m.diff("fleet.json"), "OPF-M004"),
        (lambda m: m.standings(None), "OPF-M004"),
    ],
)
def test_arguments_of_other_kinds_are_refused_by_name(call, code):
    with pytest.raises(errors.ArgumentTypeError, match=code):
        call(SkuManifest(skus=()))


@pytest.mark.parametrize("skus", [["b/a"], [7]], ids=["no id", "no text"])
def test_a_manifest_holds_ids_only(skus):
    with pytest.raises(errors.DescriptorError):
        SkuManifest.model_validate_json(json.dumps({"skus": skus}))


@pytest.mark.parametrize(
    ("skus", "said"),
    [
        (
            ["attention/paged_decode"],
            "skus.0 expected a SKU id, got 'attention/paged_decode'. `opfacade manifest freeze` writes",
        ),
        ("all", "skus expected a list or a tuple, got 'all'. `opfacade manifest freeze` writes them. [OPF-D001]"),
    ],
)
def test_who_writes_a_manifest_by_hand_is_told_where_ids_come_from(skus, said):
    with pytest.raises(errors.DescriptorError, match=re.escape(said)):
        SkuManifest(skus=skus)


def test_a_manifest_is_sorted():
    ids = SkuManifest.freeze([DECODE, OFF], target=SM90).skus
    assert SkuManifest(skus=list(ids)).skus == ids
    with pytest.raises(errors.DescriptorError, match=r"skus.1 expected an id after that of skus.0, because ids are sorted"):
        SkuManifest(skus=ids[::-1])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("/no/such/fleet.json", "got '/no/such/fleet.json', and there is no such file. [OPF-E001]"),
        ("fleet.json", "and there is no such file"),
        (f"{__file__}/fleet", "fleet': Not a directory. [OPF-E001]"),
        ("attention/paged_decode", "got 'attention/paged_decode'. [OPF-E001]"),
    ],
)
def test_a_path_that_is_required_and_not_there_says_so(monkeypatch, tmp_path, value, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPFACADE_REQUIRE_SKU", value)
    with pytest.raises(errors.SettingError, match=re.escape(said)):
        Plan._select(OFF, None, SM90)


def test_a_difference_pairs_what_is_one_kernel_changed():
    one, two = (SkuManifest.freeze([d], target=SM90) for d in (DECODE, OFF))
    found = one.diff(two)
    assert found.changed == ((one.skus[0], two.skus[0]),)
    assert (found.added, found.removed) == ((), ())
    assert "spec split: pieces -> off" in str(found)
    assert not one.diff(one)
    more = SkuManifest.freeze(examples(), target=SM90)
    assert set(one.diff(more).added) == set(more.skus) - set(one.skus)
    assert set(more.diff(one).removed) == set(more.skus) - set(one.skus)


ROWS = "norm/norm/cuda/sm_90a/rows@1/in.x=bf16/strided/kind={},span={}/g2.0123456789abcdef"


def test_what_changed_is_in_one_pair_alone():
    """Two removed kernels and one added are a change and a removal; one removed and two added are a change and an addition."""
    one, two, three = (ROWS.format("rms", span) for span in (1024, 2048, 4096))
    other = ROWS.format("rms", 1024).replace("in.x=bf16", "in.x=f16")
    old, new = SkuManifest(skus=[one, two]), SkuManifest(skus=[three])
    fewer, more = old.diff(new), new.diff(old)
    assert (len(fewer.changed), len(fewer.added), len(fewer.removed)) == (1, 0, 1)
    assert {fewer.changed[0][0], *fewer.removed} == {one, two}
    assert fewer.changed[0][1] == three
    assert (len(more.changed), len(more.added), len(more.removed)) == (1, 1, 0)
    assert {more.changed[0][1], *more.added} == {one, two}
    apart = SkuManifest(skus=[one]).diff(SkuManifest(skus=[other]))
    assert (apart.changed, apart.added, apart.removed) == ((), (other,), (one,))
    both = SkuManifest(skus=sorted([one, two])).diff(SkuManifest(skus=sorted([three, ROWS.format("layer", 2048)])))
    assert (len(both.changed), both.added, both.removed) == (2, (), ())
    assert len({id for pair in both.changed for id in pair}) == 4


def test_differences_name_the_part_and_the_fact():
    a = "attention/x/cuda/sm_90a/t@1/kv=bf16,q=bf16/strided/group=4,split=off/g2.1"
    b = "attention/x/cuda/sm_90a/t@2/kv=bf16,q=f16/strided/group=4,stages=3/g2.1"
    assert differences(a, b) == [
        "impl: t@1 -> t@2", "dtypes q: bf16 -> f16", "spec split: off -> absent", "spec stages: absent -> 3",
    ]  # fmt: skip
    assert differences(a, a) == []


def test_unlisted_names_what_a_fleet_would_miss():
    allowed = SkuManifest.freeze([DECODE], target=SM90)
    assert unlisted(allowed, [DECODE, OFF], target=SM90) == (chosen(OFF),)


def test_the_command_freezes_compares_and_checks(tmp_path):
    both, one = tmp_path / "both.jsonl", tmp_path / "one.json"
    both.write_text(f"{DECODE.model_dump_json()}\n{OFF.model_dump_json()}\n")
    one.write_text(DECODE.model_dump_json())
    run = lambda *words: CliRunner().invoke(main, ["manifest", *map(str, words)])  # noqa: E731
    assert "2 SKUs in" in run("freeze", both, "--target=sm_90a", "--out", tmp_path / "new").output
    old = run("freeze", one, "--target=sm_90a", "--note=first")
    (tmp_path / "old").write_text(old.output)
    assert SkuManifest.load(tmp_path / "old").note == "first"
    compared = run("diff", tmp_path / "old", tmp_path / "new")
    assert (compared.exit_code, compared.output) == (1, f"0 changed, 1 added, 0 removed\nadded:\n  {chosen(OFF)}\n")
    assert run("diff", tmp_path / "new", tmp_path / "new").output == "no difference\n"
    checked = run("check", tmp_path / "old", both, "--target=sm_90a")
    assert checked.exit_code == 1
    assert f"not allowed: {chosen(OFF)} (nearest in the manifest: " in checked.output
    assert "spec split: pieces -> off" in checked.output
    assert "\n  selected by problem 2\n" in checked.output
    here = run("check", tmp_path / "old", one)
    assert (here.exit_code, Target.current().is_cpu) == (1, True)
    assert "selected for cpu, because --target was left out; the manifest is of sm_90a" in here.output
    assert run("check", tmp_path / "new", both, "--target=sm_90a").exit_code == 0


ODD = DECODE.model_copy(update={"paged_kv": DECODE.paged_kv.model_copy(update={"head_dim": 96})}).revalidated()


def test_a_manifest_says_that_it_has_the_reference_or_refuses_it(tmp_path):
    """One SKU of the reference runs every problem of its element types, so a lock with this SKU refuses few problems."""
    with pytest.warns(errors.FallbackWarning, match=r"1 of 2 SKUs are of the reference.*every paged_decode.*--backend cuda"):
        found = SkuManifest.freeze([DECODE, ODD], target=SM90)
    assert sum("/reference/" in sku for sku in found.skus) == 1
    with pytest.raises(errors.UnsupportedError, match="head_dim=96"):
        SkuManifest.freeze([DECODE, ODD], Preference(backend="cuda"), SM90)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SkuManifest.freeze([DECODE], target=SM90)
        SkuManifest.freeze([DECODE, ODD], target=Target.cpu())
    file = tmp_path / "odd.json"
    file.write_text(ODD.model_dump_json())
    refused = CliRunner().invoke(main, ["manifest", "freeze", str(file), "--target=sm_90a", "--backend=cuda"])
    assert (refused.exit_code, "head_dim=96" in refused.output) == (2, True)


def test_a_path_may_be_text_and_one_descriptor_stand_alone(tmp_path):
    found = SkuManifest.freeze(DECODE, target=SM90)
    found.save(str(tmp_path / "m.json"))
    assert SkuManifest.load(str(tmp_path / "m.json")) == found == SkuManifest.freeze([DECODE], target=SM90)
    with pytest.raises(errors.ArgumentTypeError, match="descriptors expected Descriptors, got int"):
        SkuManifest.freeze([DECODE, 1], target=SM90)


def test_a_manifest_is_replaced_at_once_and_keeps_its_permissions(tmp_path):
    """A process that has the manifest open, or reads it at that moment, sees one complete manifest."""
    path = tmp_path / "m.json"
    link = tmp_path / "link.json"
    SkuManifest.freeze([DECODE], target=SM90).save(path)
    path.chmod(0o640)
    link.symlink_to(path)
    before = path.read_text()
    with path.open() as reader:
        SkuManifest(skus=()).save(link)
        assert reader.read() == before
    assert SkuManifest.load(path) == SkuManifest(skus=())
    assert (path.stat().st_mode & 0o777, link.is_symlink()) == (0o640, True)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["link.json", "m.json"]


def test_a_manifest_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    path = tmp_path / "m.json"
    SkuManifest.freeze([DECODE], target=SM90).save(path)
    before = path.read_text()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(errors.FileError, match="No space left"):
        SkuManifest(skus=()).save(path)
    assert path.read_text() == before
    assert [found.name for found in tmp_path.iterdir()] == ["m.json"]


@pytest.mark.parametrize("place", ["absent/m.json", "."])
def test_a_place_that_cannot_be_written_is_a_typed_error(tmp_path, place):
    with pytest.raises(errors.FileError, match="OPF-M002"):
        SkuManifest(skus=()).save(tmp_path / place)


def test_the_code_of_a_refusal_by_a_lock_is_the_locks_own(locked, monkeypatch):
    """Not that of a candidate that declines the descriptor before (OPF-S023: wgmma_tile with split=pieces)."""
    monkeypatch.setattr("opfacade.backends.cuda.ptxas.release", lambda *_: None)  # independent of the installed compiler
    prefill = next(e for e in examples() if e.op == "paged_prefill")
    assert [reason.code for reason in explain(prefill, target=SM90).options[0].reasons] == ["OPF-S023"]
    with pytest.raises(errors.UnsupportedError) as caught:
        Plan._select(prefill, None, SM90)
    assert caught.value.code == "OPF-S016"
    with pytest.raises(errors.UnsupportedError) as caught:
        Plan._select(prefill, Preference(allow=()), SM90)
    assert caught.value.code == "OPF-S015"
