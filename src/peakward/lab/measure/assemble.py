"""Turns a worker's answer into the record that is stored. Imports no torch."""

import uuid
from datetime import UTC, datetime
from time import perf_counter

from peakward.lab.measure.messages import Failed, Measured
from peakward.records.case import Case
from peakward.records.measurement import Environment, Measurement, Protocol, Validity
from peakward.stats.summary import summarise
from peakward.stats.validity import judge_times


class Stopwatch:
    """The time when something began, and how long ago that is."""

    def __init__(self) -> None:
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._started = perf_counter()

    def wall_s(self) -> float:
        """The seconds since it began."""
        return perf_counter() - self._started


def measurement(
    case: Case,
    protocol: Protocol,
    environment: Environment,
    watch: Stopwatch,
    answer: Measured | Failed,
    *,
    doubts: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> Measurement:
    """The record of a case, whatever its outcome.

    `doubts` are reasons against believing its times or its failure, such as memory that something else
    held. `notes` stand beside them and change nothing.
    """
    if isinstance(answer, Failed):
        return Measurement(
            id=new_id(),
            case=case,
            protocol=protocol,
            environment=environment,
            started_at=watch.started_at,
            wall_s=watch.wall_s(),
            status=answer.status,
            reason="; ".join((answer.reason, *doubts)),
            ended_by=answer.ended_by,
        )
    return Measurement(
        id=new_id(),
        case=case,
        protocol=protocol,
        environment=environment,
        started_at=watch.started_at,
        wall_s=watch.wall_s(),
        status="ok",
        ended_by="case",
        runs=(answer.run,),
        summary=summarise([answer.run]),
        validity=validity(answer, (*answer.doubts, *doubts), notes),
        phases=answer.phases,
        memory=answer.memory,
        telemetry=answer.telemetry,
        compile=answer.compile,
        linear=answer.linear,
        n_parameters=answer.n_parameters,
        loss=answer.loss,
        piece=answer.piece,
        speculated=answer.speculated,
        feeding=answer.feeding,
        loader=answer.loader,
        outputs=answer.outputs,
        quality=answer.quality,
        collectives=answer.collectives,
        ranks=answer.ranks,
        numerics=answer.numerics,
    )


def validity(answer: Measured, doubts: tuple[str, ...], notes: tuple[str, ...] = ()) -> Validity:
    """The verdict on the step times; stable times with a doubt about them are unstable."""
    judged = judge_times(answer.run.steps_s, answer.telemetry)
    verdict = "unstable" if doubts and judged.verdict == "stable" else judged.verdict
    return Validity(verdict=verdict, reasons=(*judged.reasons, *doubts, *notes))


def new_id() -> str:
    """A name for a new record, unique everywhere."""
    return uuid.uuid4().hex
