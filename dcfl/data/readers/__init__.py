"""Files of pictures and arrays, each format in a file of its own."""
