"""`python -m opfacade` is the `opfacade` command."""

from opfacade.cli.main import main

main(prog_name="opfacade")
