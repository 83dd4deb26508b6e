"""The contract that every method keeps, and a toy federation to try it on: `dcfl check`."""
