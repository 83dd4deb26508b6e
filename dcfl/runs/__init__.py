"""One run from beginning to end: prepared, trained, recorded, resumed, read back."""
