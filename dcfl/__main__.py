"""`python -m dcfl` is `dcfl`."""

from dcfl.cli.main import main

main()
