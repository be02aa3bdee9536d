"""Workload files: valid files, and the naming of a wrong entry."""

import json

import pytest

from opfacade import Preference, errors
from opfacade.select.registry import examples
from opfacade.tools import workload
from opfacade.tools.workload import Lengths, Work, lengths_of, read

TWO = [d for d in examples() if d.op == "merge_states"]


@pytest.mark.parametrize("form", ["lines", "array", "one", "bytes"])
def test_descriptors_alone_are_a_workload(form):
    texts = [d.model_dump_json() for d in TWO]
    text = {"array": f"[{','.join(texts)}]", "one": texts[0], "bytes": "\n".join(texts).encode()}.get(form, "\n\n".join(texts))
    assert list(read(text)) == [Work(d) for d in (TWO[:1] if form == "one" else TWO)]


def test_a_line_comes_back_as_it_was_written():
    work = Work(examples()[0], Preference(require="batch_invariant"), 7, 3, Lengths(q=(500, 120, 80), kv=(500, 1000, 80)))
    (back,) = read(work.line(work.plan(Preference(backend="reference"))))
    assert back == work
    (bare,) = read(Work(TWO[0]).line(Work(TWO[0]).plan(Preference(backend="reference"))))
    assert bare == Work(TWO[0])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{}", "OPF-D020"),
        ("nonsense", "OPF-D006"),
        ('{"op": "merge_states", "op": "paged_decode"}', "OPF-D006"),
        ('{"descriptor": {"op": "merge_states"}, "runs": 1, "runs": 2}', "OPF-D006"),
        ("[" * 100_000, "OPF-D006"),
        ('{"descriptor": ' * 50_000 + "{}" + "}" * 50_000, "OPF-D006"),
        ('{"descriptor": {"op": "merge_states"}, "runs": ' + "9" * 5000 + "}", "OPF-D006"),
        ("[1]", "OPF-D020"),
        ('{"descriptor": {}}', "OPF-D020"),
        ('{"descriptor": 7}', "OPF-D001"),
        ('{"descriptor": {"op": "merge_states"}, "more": 1}', "OPF-D003"),
        ('{"descriptor": {"op": "merge_states"}, "runs": -1}', "OPF-D002"),
    ],
)
def test_an_entry_that_is_none_is_named_with_its_number(entry, message):
    with pytest.raises(errors.DescriptorError, match=f"entry 2: .*{message}"):
        read(f"{TWO[0].model_dump_json()}\n{entry}")


def test_a_wrong_preference_is_named():
    text = json.dumps({"descriptor": TWO[0].model_dump(mode="json"), "preference": {"backend": "tpu"}})
    with pytest.raises(errors.DescriptorError, match=r"entry 1: .*backend"):
        read(text)


def test_bytes_that_are_no_text_are_an_entry_that_is_none():
    with pytest.raises(errors.DescriptorError, match="entry 1"):
        workload.read(b"\xff\xfe\x00{")


def test_an_array_over_lines_is_refused_as_one_text():
    text = json.dumps([{"op": "merge_states", "x": 1}], indent=1).replace('"x"', '"op"')
    with pytest.raises(errors.DescriptorError, match=r"workload: .*the duplicate name 'op'"):
        read(text)


def test_lengths_keep_to_a_bound_on_one_request():
    decode = next(d for d in examples() if d.op == "paged_decode")
    bounded = type(decode)(**{**dict(decode), "max_kv_len": 100})
    assert set(lengths_of(Work(bounded)).kv) == {100}


def test_an_empty_file_is_no_work():
    assert read("") == read("[]") == ()
