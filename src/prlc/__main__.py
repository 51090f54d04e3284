"""`python -m prlc` is the `prlc` command."""

from prlc.cli import main

main()
