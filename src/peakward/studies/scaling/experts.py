"""A mixture of experts beside the dense models of its active and of all its parameters.

The dense ones differ from it in nothing but their feed-forward network, which is as wide as the
experts that a token goes through, or as all of them: they lack the router, and no more.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.flops import FORWARDS, forward_flops
from peakward.prediction.inference.cost import serving_cost
from peakward.prediction.inference.floor import serving_floor
from peakward.prediction.parameters import n_active_parameters, n_parameters
from peakward.records.inference import ServingFloor, ServingWorkload
from peakward.records.model_shape import ModelShape
from peakward.records.study import Conclusion
from peakward.studies.claims import Sentence
from peakward.studies.engine import View
from peakward.studies.values import Value, label, plot, table

MIXTURE = "mixtral-8x7b"
DEVICE = device("h200-141")
"""Holds the 93 GB of its 16-bit weights."""
TRAINED_LEN = 4096
PROMPT_LEN, OUTPUT_LEN = 1024, 256
BATCHES = (1, 64)
EVERY_BATCH = tuple(2**exponent for exponent in range(11))


class Served(NamedTuple):
    """A model, and what serving takes on DEVICE for each of BATCHES."""

    shape: ModelShape
    floors: tuple[ServingFloor, ...]

    @property
    def training_flops_per_token(self) -> float:
        """Forward and backward, in a sequence of TRAINED_LEN."""
        return sum(FORWARDS.values()) * forward_flops(self.shape, 1, TRAINED_LEN) / TRAINED_LEN

    @property
    def decoding_flops_per_token(self) -> float:
        """The mean decode step's at batch 1."""
        return self.floors[0].cost.decode.flops


def shapes() -> tuple[ModelShape, ...]:
    """The mixture, then the dense models of its active and of all its parameters."""
    mixture = model(MIXTURE)

    def dense(n_experts: int, which: str) -> ModelShape:
        return msgspec.structs.replace(
            mixture,
            name=f"dense, {which} size",
            d_ff=n_experts * mixture.d_ff,
            n_experts=1,
            n_active_experts=1,
        )

    return mixture, dense(mixture.n_active_experts, "active"), dense(mixture.n_experts, "total")


def workload(batch_size: int) -> ServingWorkload:
    """Requests of one length."""
    return ServingWorkload(batch_size=batch_size, prompt_len=PROMPT_LEN, output_len=OUTPUT_LEN)


def served(_view: View[Any]) -> Iterator[Served]:
    """Each of the shapes."""
    for shape in shapes():
        yield Served(
            shape,
            tuple(
                serving_floor(shape, workload(n), calibration=None, device=DEVICE) for n in BATCHES
            ),
        )


def by_batch(_view: View[Any]) -> Iterator[tuple[ModelShape, int]]:
    """Each of the shapes at each batch."""
    return ((shape, n) for shape in shapes() for n in EVERY_BATCH)


def bytes_per_token(shape: ModelShape, batch_size: int) -> float:
    """Compulsory traffic of the mean decode step, over the tokens that it generates."""
    return serving_cost(shape, workload(batch_size)).decode.bytes / batch_size


def against(view: View[Any]) -> Iterator[Conclusion]:
    """The mixture against each dense model: arithmetic, traffic and memory as ratios."""
    mixture, *dense = served(view)
    for each in dense:
        told, both = Sentence(), (mixture.shape, each.shape)
        few, many = (
            mine.cost.decode.bytes / theirs.cost.decode.bytes
            for mine, theirs in zip(mixture.floors, each.floors, strict=True)
        )
        mine, theirs = mixture.floors[-1], each.floors[-1]
        flops = mixture.decoding_flops_per_token / each.decoding_flops_per_token
        weights = mine.cost.memory.weights_bytes / theirs.cost.memory.weights_bytes
        time = mine.decode.floor_s / theirs.decode.floor_s
        yield from told.end(
            f"{mixture.shape.name} against {each.shape.name} "
            f"({told('parameters', n_parameters(each.shape), 'large_count', each.shape)} parameters): "
            f"{told('FLOPs a token', flops, 'ratio', *both)} the FLOPs a token, "
            f"{told('bytes of a step', few, 'ratio', *both)} the bytes of a decode step at batch "
            f"{told('batch', BATCHES[0], 'count', *both)}, "
            f"{told('bytes of a step', many, 'ratio', *both)} at batch "
            f"{told('batch', BATCHES[-1], 'count', *both)} and "
            f"{told('least time of a step', time, 'ratio', *both, DEVICE)} the least time there on the "
            f"{DEVICE.name}, {told('weights', weights, 'ratio', *both)} the weights."
        )


def step_bytes(i: int) -> Value:
    """Traffic of a decode step at the i-th batch."""
    name = f"bytes a step, batch {BATCHES[i]}"
    return Value(name, "bytes", lambda row: row.floors[i].cost.decode.bytes)


def least_step(i: int) -> Value:
    """The least time of a decode step at the i-th batch."""
    return Value(f"least step, batch {BATCHES[i]}", "s", lambda row: row.floors[i].decode.floor_s)


TABLE = table(
    "A mixture of experts beside the dense models of its active and its total size",
    (
        label("model", lambda row: row.shape.name),
        Value("parameters", "large_count", lambda row: n_parameters(row.shape)),
        Value("active", "large_count", lambda row: n_active_parameters(row.shape)),
        Value("training, a token", "flops", lambda row: row.training_flops_per_token),
        Value("decoding, a token", "flops", lambda row: row.decoding_flops_per_token),
        *map(step_bytes, range(len(BATCHES))),
        *map(least_step, range(len(BATCHES))),
        Value("weights", "bytes", lambda row: row.floors[-1].cost.memory.weights_bytes),
        Value(
            f"with cache, batch {BATCHES[-1]}",
            "bytes",
            lambda row: row.floors[-1].cost.memory.total_bytes,
        ),
    ),
    served,
    note=f"Trained in sequences of {TRAINED_LEN}; served in bf16, {PROMPT_LEN} tokens of prompt and "
    f"{OUTPUT_LEN} of output, mean decode step. The least step is by the datasheet of the {DEVICE.name}; "
    "a router sends tokens to experts evenly.",
)
PLOT = plot(
    "Bytes a generated token by batch",
    Value("batch size", "count", lambda row: row[1]),
    Value("bytes a token", "bytes", lambda row: bytes_per_token(*row)),
    lambda row: row[0].name,
    by_batch,
    log="xy",
)
