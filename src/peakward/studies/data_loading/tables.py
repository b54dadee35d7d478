"""The tables and the plot of `data-loading`."""

from collections.abc import Sequence

from peakward.records.measurement import Interval
from peakward.records.study import Column, Plot, Point, Table
from peakward.report.cases import copies, feed
from peakward.studies.cases import SIZE_COLUMNS, size_cells
from peakward.studies.data_loading.grid import Cell, resident
from peakward.studies.drawing import series
from peakward.studies.readings import ratio, status, verdict


def way(cell: Cell) -> str:
    """To the device: "pageable", or "pinned, non-blocking"."""
    return ", ".join(copies(cell.data)) or "pageable"


def steps(cells: Sequence[Cell]) -> Table:
    """Times of the steps, and what feeding took of them."""
    return Table(
        title="Train steps fed by a loader",
        columns=(
            *SIZE_COLUMNS,
            Column(name="text"),
            Column(name="workers", unit="count"),
            Column(name="copies"),
            Column(name="status"),
            *(Column(name=name, unit="s") for name in ("mean step", "from", "to")),
            Column(name="throughput", unit="tokens_per_s"),
            *(Column(name=name, unit="ratio") for name in ("over resident", "low", "high")),
            Column(name="turns", unit="count"),
            *(Column(name=name, unit="s") for name in ("host waits", "host copies", "GPU idle")),
            Column(name="waiting, of the step", unit="share"),
            Column(name="verdict"),
        ),
        rows=tuple(
            (
                *size_cells(resident(cell.case)),
                feed(cell.data),
                cell.data.n_workers,
                way(cell),
                status(cell.measurement),
                *_interval_cells(cell.step_s),
                _tokens_per_s(cell, cell.step_s),
                *_ratio_cells(cell),
                cell.host_waits_s,
                cell.host_copies_s,
                cell.idle_s,
                cell.waited_share,
                verdict(cell.measurement),
            )
            for cell in cells
        ),
        note="Means of the timed steps of all turns, with 95% intervals, of two turns and more between "
        "turns. Over resident: of the pairs of the turns. Resident: random tokens that lie on the "
        "device. GPU idle: done with its earlier work while the host waited for batches.",
    )


def _interval_cells(interval: Interval | None) -> tuple[float | None, ...]:
    return (None,) * 3 if interval is None else (interval.estimate, interval.low, interval.high)


def _ratio_cells(cell: Cell) -> tuple[float | None, ...]:
    found = cell.over_resident
    return (None,) * 4 if found is None else (*_interval_cells(found.time), found.n_turns)


def _tokens_per_s(cell: Cell, step_s: Interval | None) -> float | None:
    return ratio(cell.case.workload.tokens_per_step, None if step_s is None else step_s.estimate)


def bases(cells: Sequence[Cell]) -> Table:
    """The same steps without a loader."""
    rows = []
    for cell in cells:
        rows.append(
            (
                *size_cells(resident(cell.case)),
                status(cell.base),
                *_interval_cells(cell.base_s),
                _tokens_per_s(cell, cell.base_s),
                verdict(cell.base),
            )
        )
    return Table(
        title="The same steps on resident tokens",
        columns=(
            *SIZE_COLUMNS,
            Column(name="status"),
            *(Column(name=name, unit="s") for name in ("mean step", "from", "to")),
            Column(name="throughput", unit="tokens_per_s"),
            Column(name="verdict"),
        ),
        rows=tuple(dict.fromkeys(rows)),
    )


def texts(cells: Sequence[Cell]) -> Table:
    """What was read, and what the first batch took."""
    rows = []
    for cell in cells:
        feeding = cell.feeding
        if feeding is not None:
            rows.append(
                (
                    feed(cell.data),
                    cell.case.model.name,
                    cell.case.workload.seq_len,
                    cell.data.n_workers,
                    feeding.text_bytes,
                    feeding.n_tokens,
                    feeding.vocab_size,
                    feeding.n_sequences,
                    feeding.first_wait_s,
                )
            )
    return Table(
        title="The text, and the wait for the first batch",
        columns=(
            Column(name="text", unit="name"),
            Column(name="model"),
            Column(name="sequence", unit="count"),
            Column(name="workers", unit="count"),
            Column(name="size", unit="bytes"),
            *(Column(name=name, unit="count") for name in ("tokens", "vocabulary", "sequences")),
            Column(name="first batch", unit="s"),
        ),
        # Of several ways to the device one row: the first.
        rows=tuple({row[:4]: row for row in reversed(rows)}.values())[::-1],
    )


def samplers(cells: Sequence[Cell]) -> Table:
    """Which sequences a rank reads."""
    return Table(
        title="Samplers of several ranks, over an epoch of rank 0",
        columns=(
            Column(name="sampler"),
            *(
                Column(name=name, unit="count")
                for name in ("ranks", "sequences", "rank 0 reads", "also read by another")
            ),
        ),
        rows=tuple(
            (
                cell.data.sampler,
                cell.data.n_ranks,
                feeding.n_sequences,
                feeding.n_rank_sequences,
                feeding.n_shared_sequences,
            )
            for cell in cells
            if (feeding := cell.feeding) is not None
        ),
        note="One rank ran; what the others read follows from the seed.",
    )


def plot(cells: Sequence[Cell]) -> Plot:
    """Share of the step spent waiting, by workers, at each size's shortest sequence: where steps are
    quickest."""
    shortest = min((cell.case.workload.seq_len for cell in cells), default=0)
    return Plot(
        title=f"Waiting for data, sequence {shortest}",
        kind="lines",
        x_label="loader workers",
        y_label="share of the step",
        x_unit="count",
        y_unit="share",
        series=series(
            (
                f"{cell.case.model.name}, {cell.data.tokenise.replace('-', ' ')}, {way(cell)}",
                Point(x=cell.data.n_workers, y=share),
            )
            for cell in cells
            if (share := cell.waited_share) is not None and cell.case.workload.seq_len == shortest
        ),
    )
