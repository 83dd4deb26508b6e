"""This machine's files, processes, streams and terminals, apart from what they are used for."""
