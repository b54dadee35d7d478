"""Edits of a user's own files: torch lines where a program makes its model, as a unified diff."""
