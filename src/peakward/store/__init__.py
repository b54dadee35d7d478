"""The embedded results database: one SQLite file, one writer at a time."""
