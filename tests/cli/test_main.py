"""The commands: each prints what one library function returns, and an error of the library ends with status 2."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from opfacade import env, explain, load_descriptor
from opfacade.cli.main import main
from opfacade.core.target import Target
from opfacade.select.registry import descriptor_types, examples
from opfacade.tools import catalogue

EXAMPLES = examples()


def invoke(*words, text=None, env=None):
    return CliRunner().invoke(main, list(words), input=text, env=env)


def test_list_has_every_op_and_its_backends():
    result = invoke("list", "--json")
    rows = json.loads(result.stdout)  # notes about the compiler are on stderr
    assert {row["op"] for row in rows} == set(descriptor_types())
    ours = {(op, backend) for op in descriptor_types() for backend in ("cuda", "reference")}
    assert {(row["op"], row["backend"]) for row in rows} == ours | {("matmul", "library")}


def test_list_says_why_a_candidate_refuses():
    refused = [row for row in catalogue.candidates(Target.cpu()) if row.backend == "cuda"]
    assert refused
    assert all(row.accepted == 0 and row.refusals and not row.promises for row in refused)
    assert "refusals" in invoke("list", "--target=cpu", env={"COLUMNS": "200"}).output
    assert "not: target.arch=cpu" in invoke("list", "--target=cpu", env={"COLUMNS": "80"}).output


def test_list_counts_what_is_accepted_and_promised():
    for row in catalogue.candidates(Target.parse("sm_90a")):
        assert row.examples == sum(example.op == row.op for example in EXAMPLES)
        assert bool(row.accepted) == bool(row.skus) == bool(row.error_models)


def test_list_in_markdown_is_one_line_a_candidate():
    lines = invoke("list", "--markdown").output.splitlines()
    assert len(lines) == 2 + len(catalogue.candidates(Target.parse("sm_90a")))
    assert all(line.count("|") == lines[0].count("|") for line in lines)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.op)
def test_explain_reads_a_descriptor_from_standard_input(example):
    result = invoke("explain", "-", "--target=sm_90a", text=example.model_dump_json())
    assert result.output.rstrip("\n") == str(explain(example, target=Target.parse("sm_90a")))


def test_explain_in_json_from_a_file(tmp_path):
    path = tmp_path / "descriptor.json"
    path.write_text(EXAMPLES[0].model_dump_json())
    answer = json.loads(invoke("explain", str(path), "--json", "--target=sm_90a").output)
    assert answer == explain(load_descriptor(path.read_text()), target=Target.parse("sm_90a")).as_dict()


def test_explain_ends_with_status_1_where_nothing_is_chosen():
    """A deployment step can test whether a kernel accepts a descriptor."""
    odd = EXAMPLES[0].model_dump_json()
    assert invoke("explain", "-", "--target=sm_90a", "--backend=cuda", text=odd).exit_code == 0
    refused = invoke("explain", "-", "--target=cpu", "--backend=cuda", text=odd)
    assert (refused.exit_code, "[OPF-S010]" in refused.output) == (1, True)


def test_compile_of_the_reference_has_nothing_to_build():
    result = invoke("compile", "-", "--target=cpu", text=EXAMPLES[0].model_dump_json())
    assert result.exit_code == 0
    assert "/reference/cpu/" in result.output
    assert "nothing to build" in result.output


def test_env_lists_every_variable_of_the_env_module():
    documented = [f for name, f in vars(env).items() if callable(f) and (f.__doc__ or "").startswith("OPFACADE_")]
    found = catalogue.environment()
    assert len(found) == len(documented) >= 8
    output = invoke("env").output
    assert all(f"{variable.name}={variable.value}" in output and variable.doc in output for variable in found)


def test_env_shows_the_value_in_force(monkeypatch):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", "/somewhere/else")
    assert "OPFACADE_CACHE_DIR=/somewhere/else  (environment)\n" in invoke("env").output


def test_env_shows_a_value_that_cannot_be_used(monkeypatch):
    monkeypatch.setenv("OPFACADE_JIT_JOBS", "many")
    result = invoke("env")
    assert result.exit_code == 0
    assert "many" in next(line for line in result.output.splitlines() if line.startswith("OPFACADE_JIT_JOBS="))


@pytest.mark.parametrize("op", sorted(descriptor_types()))
def test_schema_has_the_fields_of_the_descriptor(op):
    schema = json.loads(invoke("schema", op).output)
    assert set(schema["properties"]) == set(descriptor_types()[op].model_fields)


@pytest.mark.parametrize(
    ("words", "text", "message"),
    [
        (["schema", "nothing"], None, "op expected one of"),
        (["schema", "paged_decod"], None, "got 'paged_decod'. Did you mean paged_decode? [OPF-D020]"),
        (["explain", "-"], "{", "expected strict JSON"),
        (["explain", "-"], '{"op": "paged_decode"}', "num_qo_heads expected"),
        (["explain", "-", "--target=sm_9"], EXAMPLES[0].model_dump_json(), "arch expected"),
        (["compile", "-"], "[]", "op is one of"),
        (["explain", "-"], b"\xff\xfe", "expected strict JSON"),
        (["list", "--target=gpu"], None, "arch expected"),
    ],
)
def test_an_error_is_one_message_on_stderr_and_status_two(words, text, message):
    result = invoke(*words, text=text)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_help_and_version_import_neither_torch_nor_rich():
    code = (
        "import sys; from opfacade.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'rich', 'tvm_ffi'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240).returncode == 0


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "opfacade", "--version"], capture_output=True, text=True, timeout=240)
    assert done.stdout.startswith("opfacade, version ")


@pytest.mark.parametrize("words", [("explain", "-"), ("manifest", "freeze", "-"), ("warmup", "-")], ids=" ".join)
@pytest.mark.parametrize("text", ["[" * 100000, "hello", "\x00"], ids=["deep", "word", "nul"])
def test_what_is_no_descriptor_is_told_in_a_line(words, text):
    result = invoke(*words, text=text)
    assert result.exit_code == 2
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_file_that_cannot_be_written_is_told_in_a_line(tmp_path):
    source = tmp_path / "d.json"
    source.write_text(EXAMPLES[0].model_dump_json())
    for words in (
        ("manifest", "freeze", str(source), "--target=sm_90a", "--out=/nonexistent/x"),
        ("tuned", "export", "/nonexistent/x"),
    ):
        result = invoke(*words)
        assert result.exit_code == 2, words
        assert isinstance(result.exception, SystemExit), words
