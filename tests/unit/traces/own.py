"""Traces that Peakward recorded itself: `small` at 4 × 512, a train step in bf16, on an H200."""

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "data" / "traces"
COMPILED = FOLDER / "h200_small_compiled.json.gz"
"""Two steps, blocks compiled, under ranges `forward`, `backward` and `optimizer`."""
GRAPHS = FOLDER / "h200_small_graphs.json.gz"
"""Three steps, each one launch of a CUDA graph of all of it."""
