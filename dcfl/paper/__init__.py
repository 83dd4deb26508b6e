"""The paper's tables and figures, and the questions it leaves open, as experiments by name."""
