"""Runs on real SuperLinks and SuperNodes: keys, processes, submission."""
