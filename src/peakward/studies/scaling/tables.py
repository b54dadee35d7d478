"""Tables of `scaling`."""

from collections.abc import Sequence

from peakward.records.study import Column, Table
from peakward.report.format import format_cell
from peakward.studies.scaling.budgets import TRAINING_MFU, Allocation, devices
from peakward.studies.scaling.experts import (
    BATCHES,
    OUTPUT_LEN,
    PROMPT_LEN,
    TRAINED_LEN,
    Served,
    on,
)
from peakward.studies.scaling.lives import SERVING_MFUS, Life, Overtrained

SIZE = (
    Column(name="parameters", unit="large_count"),
    Column(name="tokens", unit="large_count"),
    Column(name="tokens a parameter", unit="count"),
)


def budgets(allocations: Sequence[Allocation]) -> Table:
    """What each rule makes of each budget."""
    return Table(
        title="A training budget, split by each rule",
        columns=(
            Column(name="budget", unit="flops"),
            Column(name="rule", unit="name"),
            *SIZE,
            Column(name="loss, nats a token", unit="count"),
            *(Column(name=f"hours, {each.key}", unit="count") for each in devices()),
        ),
        rows=tuple(
            (
                each.budget_flops,
                each.plan.rule,
                each.plan.n_parameters,
                each.plan.n_tokens,
                each.plan.tokens_per_parameter,
                each.plan.loss,
                *each.device_hours,
            )
            for each in allocations
        ),
        note=f"Device-hours of one device, at an assumed MFU of {_mfu(TRAINING_MFU)} in bf16. "
        "A loss is compared within its fit alone.",
    )


def overtrained(rows: Sequence[Overtrained]) -> Table:
    """Smaller models of one loss: what they take to train, and when they pay."""
    return Table(
        title="A smaller model, trained to the loss of the compute-optimal one",
        columns=(
            Column(name="fit", unit="name"),
            Column(name="size", unit="ratio"),
            *SIZE,
            Column(name="training FLOPs", unit="ratio"),
            *(
                Column(name=f"pays from, served at {_mfu(mfu)}", unit="large_count")
                for mfu in SERVING_MFUS
            ),
        ),
        rows=tuple(
            (
                each.fit.name,
                each.size,
                each.n_parameters,
                *(
                    ("out of reach", None, None)
                    if each.plan is None
                    else (
                        each.plan.n_tokens,
                        each.plan.tokens_per_parameter,
                        each.plan.training_flops / each.optimum.training_flops,
                    )
                ),
                *each.break_even_tokens,
            )
            for each in rows
        ),
        note="Pays from: served tokens from which training and serving together take less device "
        f"time than of the compute-optimal model; training at an MFU of {_mfu(TRAINING_MFU)}.",
    )


def lives(rows: Sequence[Life]) -> Table:
    """The cheapest model of one loss, by the tokens that it serves."""
    return Table(
        title="The cheapest model of that loss over its life",
        columns=(
            Column(name="fit", unit="name"),
            Column(name="served tokens", unit="large_count"),
            Column(name="serving MFU", unit="share"),
            *SIZE,
            Column(name="training", unit="flops"),
            Column(name="serving", unit="flops"),
            Column(name="hours", unit="count"),
            Column(name="hours, compute-optimal", unit="count"),
            Column(name="saved", unit="share"),
        ),
        rows=tuple(
            (
                each.fit.name,
                each.plan.served_tokens,
                each.serving_mfu,
                each.plan.training.n_parameters,
                each.plan.training.n_tokens,
                each.plan.training.tokens_per_parameter,
                each.plan.training.training_flops,
                each.plan.serving_flops,
                each.device_hours,
                each.optimum_device_hours,
                each.saved,
            )
            for each in rows
        ),
        note=f"Device-hours of an {devices()[0].name}, training at an MFU of {_mfu(TRAINING_MFU)}. A "
        "served token, of prompt or output, takes 2·N FLOPs.",
    )


def experts(rows: Sequence[Served]) -> Table:
    """The mixture beside the dense models."""
    return Table(
        title="A mixture of experts beside the dense models of its active and its total size",
        columns=(
            Column(name="model", unit="name"),
            Column(name="parameters", unit="large_count"),
            Column(name="active", unit="large_count"),
            Column(name="training, a token", unit="flops"),
            Column(name="decoding, a token", unit="flops"),
            *(Column(name=f"bytes a step, batch {n}", unit="bytes") for n in BATCHES),
            *(Column(name=f"least step, batch {n}", unit="s") for n in BATCHES),
            Column(name="weights", unit="bytes"),
            Column(name=f"with cache, batch {BATCHES[-1]}", unit="bytes"),
        ),
        rows=tuple(
            (
                each.shape.name,
                each.n_parameters,
                each.n_active_parameters,
                each.training_flops_per_token,
                each.decoding_flops_per_token,
                *(floor.cost.decode.bytes for floor in each.floors),
                *(floor.decode.floor_s for floor in each.floors),
                each.floors[-1].cost.memory.weights_bytes,
                each.floors[-1].cost.memory.total_bytes,
            )
            for each in rows
        ),
        note=f"Trained in sequences of {TRAINED_LEN}; served in bf16, {PROMPT_LEN} tokens of prompt "
        f"and {OUTPUT_LEN} of output, mean decode step. The least step is by the datasheet of the "
        f"{on().name}; a router sends tokens to experts evenly.",
    )


def _mfu(mfu: float) -> str:
    return format_cell(mfu, "share")
