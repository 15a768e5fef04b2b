"""`python -m gatepost.cli` is `gatepost`."""

from gatepost.cli import main

main()
