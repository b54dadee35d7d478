"""Traces that Peakward recorded itself: see the README beside them."""

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "data" / "traces"
COMPILED = FOLDER / "h200_decoder_compiled.json.gz"
"""A step, blocks compiled, under ranges `forward`, `backward` and `optimizer`."""
GRAPHS = FOLDER / "h200_decoder_cuda_graphs.json.gz"
"""Three steps, each one launch of a CUDA graph of all of it."""
CPU_DECODER = FOLDER / "cpu_decoder.json.gz"
"""A training step of a small decoder on a CPU, under Peakward's ranges."""
CPU_ATTENTION = FOLDER / "cpu_attention.json.gz"
"""Two steps of naive attention on a CPU, forward and backward, under Peakward's ranges."""
