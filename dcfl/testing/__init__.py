"""The contract that every method keeps, and the toys that it is tried with: `dcfl check`."""
