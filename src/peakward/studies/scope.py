"""How much of a study's grid is run, and the grid that studies share."""

from typing import Literal

import msgspec

from peakward.models.presets import model
from peakward.records.case import DeviceType, Precision, Source
from peakward.records.model_shape import ModelShape

ScopeName = Literal["small", "corners", "full"]


class Scope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named part of every study's grid, and what the user wants different in it.

    An override that is empty or None leaves the study's own choice.
    """

    name: ScopeName
    """`small` ends within about two minutes on two cores, `corners` has the extremes of the full
    grid, `full` all of it."""
    models: tuple[ModelShape, ...] = ()
    seq_lens: tuple[int, ...] = ()
    batch_size: int | None = None
    precisions: tuple[Precision, ...] = ()
    limits_bytes: tuple[int, ...] = ()
    """Memory limits, for the studies of what fits."""
    max_timed_s: float | None = None
    """Timed seconds a case, in place of the study's own bound."""
    timeout_s: float | None = None
    """Wall seconds a case, model building and compilation included."""
    text: Source | None = None
    tokenizer: Source | None = None
    """For the study of loading text."""
    workers: tuple[int, ...] = ()
    """The numbers of a loader's workers, for the study of loading text."""


class Grid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Model sizes by sequence lengths at one batch size."""

    models: tuple[ModelShape, ...]
    seq_lens: tuple[int, ...]
    batch_size: int


def micro() -> ModelShape:
    """A second size for a CPU, a quarter of `tiny`: deep and narrow, with a small vocabulary.

    In `tiny` the logits of 10,000 words outweigh the blocks' activations; here the blocks hold
    most, so that checkpointing shows.
    """
    return msgspec.structs.replace(
        model("tiny"),
        name="micro",
        vocab_size=1000,
        n_layers=8,
        d_model=128,
        d_ff=512,
        head_dim=32,
    )


def default_scope(device: DeviceType) -> Scope:
    """The scope that a study takes where the user names none."""
    return Scope("small" if device == "cpu" else "corners")


def grid(scope: Scope) -> Grid:
    """The sizes and sequence lengths of a scope, with the user's overrides in place."""
    own = _GRIDS[scope.name]()
    return Grid(
        models=scope.models or own.models,
        seq_lens=scope.seq_lens or own.seq_lens,
        batch_size=scope.batch_size or own.batch_size,
    )


def _small() -> Grid:
    return Grid(models=(micro(), model("tiny")), seq_lens=(64, 256), batch_size=2)


def _corners() -> Grid:
    return Grid(models=(model("small"), model("2.7B")), seq_lens=(128, 1024), batch_size=4)


def _full() -> Grid:
    sizes = ("small", "medium", "large", "xl", "2.7B")
    return Grid(
        models=tuple(model(name) for name in sizes), seq_lens=(128, 256, 512, 1024), batch_size=4
    )


_GRIDS = {"small": _small, "corners": _corners, "full": _full}
