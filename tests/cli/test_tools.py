"""The tool commands that no library test covers: progress on a terminal, and clangd."""

from click.testing import CliRunner

from opfacade.cli import tools as cli_tools
from opfacade.cli.main import main
from opfacade.errors import CompileError
from opfacade.tools.warmup import WarmupStep


def test_progress_ends_with_what_was_done(capsys):
    def run(report):
        report(WarmupStep("a/b[c]", "build", 3.0))
        report(WarmupStep("a/b[c]", "built", 3.0, 2.5))
        report(WarmupStep("d", "failed", 3.0, 1.0, CompileError("broken")))
        return ()

    assert cli_tools._with_progress(run) == ()
    told = capsys.readouterr().out
    assert "built   a/b[c] (2.5 s)" in told
    assert "failed  d (1.0 s)\nbroken" in told


def test_a_build_is_announced_with_the_seconds_to_expect():
    assert cli_tools._line(WarmupStep("a/b", "build", 3.4)) == "build   a/b (about 3 s)"


def test_clangd_names_what_it_wrote(tmp_path):
    result = CliRunner().invoke(main, ["clangd", str(tmp_path), "--arch=sm_80"])
    assert result.output == f"{tmp_path}/.clangd\n"
    assert "sm_80" in (tmp_path / ".clangd").read_text()
