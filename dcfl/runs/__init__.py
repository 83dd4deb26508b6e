"""Prepares, trains, records, reads back and compares runs."""
