"""docs/integrations.md: every example runs, and every option and name in it exists."""

import re
from pathlib import Path

import pytest

from examples.demo.__main__ import main as demo
from tests.integrations.signatures import stored
from tests.support.transformers_here import missing

PAGE = (Path(__file__).resolve().parents[2] / "docs/integrations.md").read_text()
EXAMPLES = re.findall(r"(<!-- needs transformers -->\n)?```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number, capsys):
    needs, code = EXAMPLES[number]
    if needs and missing():
        pytest.skip(missing())
    exec(compile(code, "docs/integrations.md", "exec"), {})
    assert capsys.readouterr().out


def test_the_versions_are_those_of_the_tables():
    for project, name in (("vllm", "vLLM"), ("sglang", "SGLang")):
        assert f"| {name} | {stored(project)['version']} |" in PAGE


def test_the_names_of_continuous_batching_are_those_that_are_registered():
    from opfacade.integrations.transformers.releases import release_of

    rows = {"5.18.0": "`paged\\|opfacade`", "5.24.0": "`opfacade_flash`", "5.25.0": "none"}
    for version, shown in rows.items():
        name = release_of(version).continuous
        assert (name.replace("|", "\\|") or "none") == shown.strip("`")
        assert f"| {shown} |" in PAGE


def test_the_demo_has_the_option_that_the_page_names():
    options = {option for parameter in demo.params for option in parameter.opts}
    assert "python -m examples.demo --model" in PAGE
    assert "--model" in options
