"""The contracts of methods and networks, and a toy federation to try them on: `dcfl check`."""
