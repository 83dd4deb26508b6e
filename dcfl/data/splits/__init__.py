"""Who owns which image: drawn, read from a file, or by whole groups."""
