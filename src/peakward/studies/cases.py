"""Cases from sizes and settings, and the cells that tables name them by."""

from typing import Any, TypeVar

import msgspec

from peakward.prediction.parameters import n_parameters
from peakward.records.case import (
    Configuration,
    ConfiguredCase,
    DeviceType,
    ModelCase,
    OperatorCase,
    Pass,
    Workload,
)
from peakward.records.model_shape import ModelShape
from peakward.records.study import Column, Table
from peakward.report.cases import workload

Limited = TypeVar("Limited", bound=ModelCase | OperatorCase)


def model_case(
    shape: ModelShape,
    batch_size: int,
    seq_len: int,
    pass_: Pass,
    device: DeviceType,
    **configuration: Any,
) -> ModelCase:
    """A pass over random tokens of a fixed length; `configuration` is what differs from the baseline."""
    return ModelCase(
        model=shape,
        workload=Workload(batch_size=batch_size, seq_len=seq_len, pass_=pass_),
        configuration=Configuration(**configuration),
        device=device,
    )


def with_levers(case: ModelCase, **configuration: Any) -> ModelCase:
    """The case under another configuration."""
    changed = msgspec.structs.replace(case.configuration, **configuration)
    return msgspec.structs.replace(case, configuration=changed)


def with_work(case: ModelCase, **work: Any) -> ModelCase:
    """The case with another workload."""
    changed = msgspec.structs.replace(case.workload, **work)
    return msgspec.structs.replace(case, workload=changed)


def under_limit(case: Limited, limit_bytes: int | None) -> Limited:
    """The case with a memory limit."""
    return msgspec.structs.replace(case, memory_limit_bytes=limit_bytes)


def place(case: ConfiguredCase) -> str:
    """For a sentence: "tiny 2 × 128 train_step"."""
    return f"{case.name} {workload(case.workload)}"


def sizes(shapes: tuple[ModelShape, ...]) -> Table:
    """Returns a table of the models by name, with their true parameter counts, each once."""
    names = ("parameters", "layers", "d_model", "d_ff", "heads", "vocabulary")
    rows = (
        (
            each.name,
            n_parameters(each),
            each.n_layers,
            each.d_model,
            each.d_ff,
            each.n_heads,
            each.vocab_size,
        )
        for each in shapes
    )
    return Table(
        title="Models",
        columns=(Column(name="model"), *(Column(name=name, unit="count") for name in names)),
        rows=tuple(dict.fromkeys(rows)),
    )
