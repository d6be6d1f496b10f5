"""`python -m packhorse` is the packhorse command."""

from packhorse.cli import main

main(prog_name="packhorse")
