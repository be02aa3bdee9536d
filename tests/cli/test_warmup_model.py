"""opfacade warmup --model and --list."""

import pytest
from click.testing import CliRunner

from opfacade.cli.main import main
from opfacade.models import MODELS, descriptors
from opfacade.tools.workload import read


def warmup(*words):
    return CliRunner().invoke(main, ["warmup", *words])


def test_list_names_the_models():
    assert warmup("--list").stdout.split() == list(MODELS)


def test_list_prints_the_problems_of_a_model_as_a_file_for_the_other_commands():
    found = read(warmup("--model=gpt-oss", "--list").stdout)
    assert tuple(work.descriptor for work in found) == descriptors("gpt-oss")


def test_list_prints_the_problems_of_a_file(tmp_path):
    path = tmp_path / "one.jsonl"
    path.write_text(descriptors("gpt-oss")[0].model_dump_json() + "\n")
    assert read(warmup(str(path), "--list").stdout) == read(path.read_text())


def test_the_kernels_of_a_model_are_built_once_each(monkeypatch):
    given = []
    monkeypatch.setattr("opfacade.tools.warmup.warm", lambda plans, jobs, report: given.extend(plans) or ())
    result = warmup("--model=llama3-8b", "--target=sm_90a", "--jobs=2")
    assert result.exit_code == 0, result.output
    assert [plan.descriptor for plan in given] == list(descriptors("llama3-8b"))
    assert {plan.target.arch for plan in given} == {"sm_90a"}


def test_a_machine_without_a_gpu_builds_nothing_and_says_so():
    """A deployment step that did nothing must not look successful."""
    result = warmup("--model=llama3-8b")
    assert result.exit_code == 1
    assert "run on the reference: nothing was built. Pass --target, such as sm_90a." in result.stderr
    assert warmup("--model=llama3-8b", "--target=cpu").exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model=qwen3"], "Did you mean qwen3-30b? [OPF-D060]"),
        ([], "Missing FILE or --model"),
        (["--model=gpt-oss", "-"], "Give FILE or --model, not both"),
    ],
)
def test_wrong_words_are_refused(words, message):
    result = warmup(*words)
    assert result.exit_code == 2
    assert message in result.stderr
