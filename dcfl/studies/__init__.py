"""Experiments about experiments: the paper's tables, what models have learned, limits, speed."""
