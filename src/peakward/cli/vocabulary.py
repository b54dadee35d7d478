"""The options that commands share. Every value is text here; `cli.options` reads it."""

from typing import TYPE_CHECKING, Annotated

import msgspec
import tyro
from tyro.conf import OmitArgPrefixes

from peakward.levers.axis import written
from peakward.levers.registry import AXES


def option(metavar: str, default: str, name: str | None = None) -> object:
    """How the help shows an option: its value and what holds without it."""
    return tyro.conf.arg(name=name, metavar=metavar, help_behavior_hint=f"(default: {default})")


def required(metavar: str) -> object:
    """How the help shows what is no option; the command says what is missing."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="(required)")


class ShapeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which models."""

    model: Annotated[str | None, option("NAMES", "small; on a CPU tiny; in a study its own")] = None
    """Presets: tiny, small, medium, large, xl, 2.7B, gpt2, and others (any wrong name lists them); or
    a Hugging Face config.json, its folder, or ORG/NAME in the local cache. In run and bench also a
    module: py:package.module:factory, or hf: and a configuration of transformers."""
    n_layers: Annotated[str | None, option("N", "the preset's")] = None
    """Blocks, in place of the preset's."""
    d_model: Annotated[str | None, option("N", "the preset's")] = None
    """Width of the residual stream, in place of the preset's; `--n-heads` must divide it."""
    d_ff: Annotated[str | None, option("N", "the preset's")] = None
    """Width inside the feed-forward layer (of one expert), in place of the preset's."""
    n_experts: Annotated[str | None, option("N", "the preset's")] = None
    """Feed-forward networks of a block: more than one is a mixture of experts."""
    n_active_experts: Annotated[str | None, option("N", "the preset's")] = None
    """Experts that each token goes through."""
    n_heads: Annotated[str | None, option("N", "the preset's")] = None
    """Query heads, in place of the preset's."""
    n_kv_heads: Annotated[str | None, option("N", "the preset's; all heads in a custom shape")] = (
        None
    )
    """Key and value heads: fewer than `--n-heads` is grouped-query attention."""


class WorkloadOptions(ShapeOptions, frozen=True, kw_only=True):
    """How much work a step is."""

    batch_size: Annotated[str | None, option("N,…", "4; on a CPU 2")] = None
    """Sequences in one micro-batch."""
    seq_len: Annotated[str | None, option("N,…", "512; on a CPU 128")] = None
    """Tokens in one sequence; in decode, that its new token attends to, itself included."""
    pass_: Annotated[str, option("PASS,…", "train_step", "pass")] = "train_step"
    """forward, forward_backward, train_step, prefill or decode."""
    accumulate: Annotated[str, option("N,…", "1")] = "1"
    """Micro-batches in one step of the optimiser."""
    seed: Annotated[str, option("N", "0")] = "0"
    """The seed of the random tokens and weights."""


if TYPE_CHECKING:

    class SettingOptions(WorkloadOptions, frozen=True, kw_only=True):
        """How the work is carried out: an option for each axis of levers."""

        precision: str | None = None
        weights: str | None = None
        kv_cache: str | None = None
else:
    SettingOptions = msgspec.defstruct(
        "SettingOptions",
        [
            (
                axis.name,
                Annotated[
                    str | None,
                    tyro.conf.arg(
                        metavar=axis.metavar,
                        help=axis.help,
                        help_behavior_hint=f"(default: {written(axis.default)})",
                    ),
                ],
                None,
            )
            for axis in AXES
            if axis.is_option
        ],
        bases=(WorkloadOptions,),
        namespace={"__doc__": "How the work is carried out: an option for each axis of levers."},
        frozen=True,
        kw_only=True,
    )


class WorkOptions(SettingOptions, frozen=True, kw_only=True):
    """The work to run, on any device. A comma list makes a grid where the command takes one."""

    memory_limit: Annotated[str | None, option("GIB,…", "none")] = None
    """A case that needs more memory than this many GiB ends as `oom`."""


class CaseOptions(WorkOptions, frozen=True, kw_only=True):
    """The work to run, and the device."""

    device: Annotated[str | None, option("cpu|cuda", "cuda where there is one")] = None
    """Where it runs."""


class ViewOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Views of a record beside the report in the terminal."""

    json: bool = False
    """Print the record as JSON, and nothing else."""
    html: Annotated[str | None, option("FILE", "none")] = None
    """Write the report as one self-contained page."""
    markdown: Annotated[str | None, option("FILE", "none")] = None
    """Write the report as Markdown."""
    force: bool = False
    """Overwrite the files named above where they exist."""


class ResultOptions(ViewOptions, frozen=True, kw_only=True):
    """Where results are kept, and views of them."""

    db: Annotated[str, option("FILE", "peakward.db")] = "peakward.db"
    """The database of results; what it holds already is not measured again."""


Shapes = OmitArgPrefixes[ShapeOptions]
Work = OmitArgPrefixes[WorkOptions]
Cases = OmitArgPrefixes[CaseOptions]
Views = OmitArgPrefixes[ViewOptions]
Results = OmitArgPrefixes[ResultOptions]
"""As fields of a command's options: their own options carry no prefix."""
