"""One shape of an operator, and everyone who computes it."""

from collections.abc import Callable, Mapping

import msgspec
from torch import Tensor

Arm = Callable[[], Tensor | tuple[Tensor, ...]]
"""One call, on inputs that are there already; gives what it computed."""
OURS = "peakward"
"""Ours; what begins with it is another of ours, and no peer."""
COPY = "copy"
"""A copy that moves as many bytes as the contest must: nobody's arm, but timed among them."""
READ = "read"
"""In its place of what writes next to nothing: a copy has written only a part when it ends, and a cache has
the rest."""


class Contest(msgspec.Struct, frozen=True, kw_only=True):
    """`arms` are built one after the other, all on equal inputs, and timed in turns.

    The arm named `peakward` is ours; what an arm's builder or first call raises is recorded as its
    result, and of ours fails the contest.
    """

    operator: str
    shape: Mapping[str, int | str | bool]
    """What the table shows of the shape, dtype and pass included."""
    arms: Mapping[str, Callable[[], Arm]]
    flops: float | None = None
    """That the maths needs, causal attention counted as half."""
    n_bytes: int | None = None
    """That must be moved: inputs read once, outputs written once."""
    reads: bool = False
    """Whether next to nothing of it is written."""
    exact: Callable[[], Tensor | tuple[Tensor, ...]] | None = None
    """What arms should give, in fp64 or as near as fits; without it the first peer's."""
    within: float = 2e-2
    """The relative error beyond which an arm's result is not one."""
