"""Readers of trace formats: each reads one file format into a `Table`."""
