"""torch's deterministic algorithms, for as long as a computation must give the same bits again."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Inside, torch takes deterministic algorithms where `wanted`, and warns of operators that have none;
    otherwise what was set before stands."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if wanted:
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
