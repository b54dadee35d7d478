"""One file format a reader; each gives a `Table`."""
