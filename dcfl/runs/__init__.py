"""One run from beginning to end: prepared, trained, recorded, read back and compared."""
