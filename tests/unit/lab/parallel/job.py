"""Jobs of a test: ranks that find the functions beside the tests."""

import sys
from pathlib import Path

import peakward
from peakward.lab.parallel.launch import launch

HERE = Path(__file__).parent
SOURCE = Path(peakward.__file__).parents[1]


def run_ranks(target, arguments, *, n_ranks, device="cpu", timeout_s=60.0, patience_s=60.0):
    """The results by rank, over gloo unless the device is another."""
    return launch(
        target,
        arguments,
        n_ranks=n_ranks,
        device=device,
        timeout_s=timeout_s,
        patience_s=patience_s,
        environ={"PYTHONPATH": ":".join([str(HERE), str(SOURCE), *filter(None, sys.path)])},
    )
