"""Watches a training run, rewinds it where a value turns non-finite, and finds the operator that made it."""
