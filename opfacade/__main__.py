"""`python -m opfacade` is the `opfacade` command."""

from opfacade.cli import main

main(prog_name="opfacade")
