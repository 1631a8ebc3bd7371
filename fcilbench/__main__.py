"""`python -m fcilbench` is the `fcilbench` command."""

from fcilbench.cli.main import main

main()
