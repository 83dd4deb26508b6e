"""`python -m dcfl` is `dcfl`."""

from dcfl.cli import main

main()
