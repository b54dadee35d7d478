"""Traces that Peakward recorded itself: see the README beside them."""

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "data" / "traces"
COMPILED = FOLDER / "h200_decoder_compiled.json.gz"
"""A step, blocks compiled, under ranges `forward`, `backward` and `optimizer`."""
GRAPHS = FOLDER / "h200_decoder_cuda_graphs.json.gz"
"""Three steps, each one launch of a CUDA graph of all of it."""
