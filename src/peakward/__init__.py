"""Peakward: how fast a Transformer runs here, why not faster, and which lever gets it there."""

__version__ = "0.1.0"
