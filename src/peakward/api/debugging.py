"""`pw.debug` and `peakward debug`: a training run under watch, rewound where a value turns non-finite."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from peakward.api import session
from peakward.api.live_steps import expect_loader
from peakward.api.machine import this_machine
from peakward.diagnose import nonfinite
from peakward.records import check
from peakward.records.case import ConfiguredCase, ModelCase, Source, TextData
from peakward.records.debugging import Hunt
from peakward.records.errors import PeakwardError
from peakward.report.cases import label

if TYPE_CHECKING:
    import torch

N_STEPS = 1000
SNAPSHOT_EVERY = 100
CHECK_EVERY = 10
MOST_STEPS = 10**9


def debug(
    step: Callable[..., object],
    *,
    model: "torch.nn.Module",
    optimizer: "torch.optim.Optimizer | None" = None,
    batches: Iterable[Any] | None = None,
    stateful: Iterable[Any] = (),
    n_steps: int = N_STEPS,
    snapshot_every: int = SNAPSHOT_EVERY,
    check_every: int = CHECK_EVERY,
    folder: str | Path | None = None,
    name: str | None = None,
) -> Hunt:
    """Run a training loop under watch, and find where its first value that is not finite came from.

    The run goes on as it would: losses are read when they have arrived, and every so many steps the state is
    copied to the host. When a loss or such a copy is not finite, the state goes back to the last good copy,
    the steps are replayed, and the first operator, module, channel and inputs are named with the likely
    cause; then changes are tried from that state on. Afterwards model and optimizer are in the state of that
    copy; after a run that stayed finite, as the run left them.

    Args:
        step: one whole step: of a batch where there are batches, else of nothing. It returns the loss; a
            tensor on a GPU is best, because `loss.item()` waits for the device.
        model: what it trains.
        optimizer: what it steps.
        batches: a loader, or another iterable. What it gave since the oldest snapshot is kept, so that a
            shuffled loader is replayed exactly.
        stateful: what else a step changes, with `state_dict` and `load_state_dict`: a GradScaler, a
            scheduler.
        n_steps: at most so many; fewer where the batches end.
        snapshot_every: steps from one copy of the state to the next.
        check_every: steps between two looks at the losses.
        folder: where snapshots are written too, each complete or not at all; else they are in memory alone.
        name: for the report; the function's without.

    Raises:
        PeakwardError: no function, model or optimizer, an object without a state, a step that returns more
            than a loss, no batch, batches that are written over one another, or a folder that takes no
            snapshot.
    """
    check.function(step, "step", "a function that runs one training step")
    called = str(getattr(step, "__qualname__", type(step).__name__))
    if name is not None:
        called = check.line(name, "name")
    steps, snapshots, checks = _counts(n_steps, snapshot_every, check_every)
    place = _folder(folder)
    if batches is not None:
        expect_loader(batches)
    others = check.items(stateful, "objects with a state")
    for each in others:
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            raise PeakwardError(
                "expected objects with state_dict and load_state_dict in stateful, got "
                f"{type(each).__name__}"
            )
    session.expect_torch()
    from peakward.lab.debugging.hunt import Asked, hunt
    from peakward.lab.debugging.snapshot import TrainingState
    from peakward.lab.models.given_module import expect_live

    if model is None:
        raise PeakwardError(
            "expected a torch.nn.Module for model, got None: give the one that step trains"
        )
    expect_live(model, optimizer)
    kind = next((each.device.type for each in model.parameters()), "cpu")
    asked = Asked(
        name=called,
        step=step,
        batches=batches,
        n_steps=steps,
        snapshot_every=snapshots,
        check_every=checks,
        folder=place,
        state=TrainingState(model, optimizer, others),
        cause=nonfinite.cause,
    )
    return hunt(asked, this_machine(kind).environment)


def debug_case(
    case: ConfiguredCase,
    *,
    learning_rate: float | None = None,
    text: str | None = None,
    n_steps: int = N_STEPS,
    snapshot_every: int = SNAPSHOT_EVERY,
    check_every: int = CHECK_EVERY,
    folder: str | Path | None = None,
) -> Hunt:
    """As `debug`, of a case's training step: the reference decoder or a module by its source.

    Args:
        learning_rate: of AdamW; torch's 1e-3 without.
        text: the documents that it is trained on: a name such as "python-topics", a file or a folder. Random
            tokens without.

    Raises:
        PeakwardError: a case that does not train, text for a module, or as `debug`.
    """
    session.expect_torch()
    if case.workload.pass_ != "train_step":
        raise PeakwardError(
            f"expected the pass train_step, got {case.workload.pass_}: only a step of training has a run"
        )
    if case.configuration.cuda_graphs:
        raise PeakwardError(
            "expected no cuda-graphs, got them: a graph replays kernels that nobody can look into; the same "
            "steps without it give the same numbers"
        )
    if text is not None:
        case = _with_text(case, text)
    steps, snapshots, checks = _counts(n_steps, snapshot_every, check_every)
    place = _folder(folder)
    from peakward.lab.debugging.hunt import Asked, hunt
    from peakward.lab.debugging.snapshot import TrainingState
    from peakward.lab.levers.configured_step import ConfiguredStep
    from peakward.lab.levers.prepare import prepare

    here = this_machine(case.device).environment
    with prepare(case) as prepared:
        assert isinstance(prepared, ConfiguredStep)
        assert prepared.optimizer is not None
        if learning_rate is not None:
            for group in prepared.optimizer.param_groups:
                group["lr"] = check.rate(learning_rate, "learning_rate")
        others = (prepared.scaler,) if prepared.scaler.is_enabled() else ()
        asked = Asked(
            name=label(case),
            step=prepared.on,
            batches=prepared.batches(),
            n_steps=steps,
            snapshot_every=snapshots,
            check_every=checks,
            folder=place,
            state=TrainingState(prepared.model, prepared.optimizer, others),
            cause=nonfinite.cause,
        )
        return hunt(asked, here)


def _counts(n_steps: int, snapshot_every: int, check_every: int) -> tuple[int, int, int]:
    steps = check.whole(n_steps, "n_steps", low=1, high=MOST_STEPS)
    return (
        steps,
        check.whole(snapshot_every, "snapshot_every", low=1, high=MOST_STEPS),
        check.whole(check_every, "check_every", low=1, high=MOST_STEPS),
    )


def _folder(folder: str | Path | None) -> Path | None:
    if folder is None:
        return None
    place = check.path(folder, "folder")
    if not place.is_dir():
        raise PeakwardError(f"expected an existing folder for snapshots, got {str(place)!r}")
    return place


def _with_text(case: ConfiguredCase, name: str) -> ConfiguredCase:
    if not isinstance(case, ModelCase):
        raise PeakwardError(
            f"expected the decoder beside text {name!r}, got a module, whose batch is its own: use pw.debug "
            "with your loader"
        )
    from peakward.lab.data import text

    data = TextData(text=text.source(name), tokenizer=Source("bytes"))
    return msgspec.structs.replace(case, workload=msgspec.structs.replace(case.workload, data=data))
