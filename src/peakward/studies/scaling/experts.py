"""A mixture of experts beside the dense models of its active and of all its parameters.

The dense ones differ from it in nothing but their feed-forward network, which is as wide as the
experts that a token goes through, or as all of them: they lack the router, and no more.
"""

import msgspec

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.flops import FORWARDS, forward_flops
from peakward.prediction.inference.cost import serving_cost
from peakward.prediction.inference.floor import serving_floor
from peakward.prediction.parameters import n_active_parameters, n_parameters
from peakward.records.device import Device
from peakward.records.inference import ServingFloor, ServingWorkload
from peakward.records.model_shape import ModelShape

MIXTURE = "mixtral-8x7b"
DEVICE = "h200-141"
"""Holds the 93 GB of its 16-bit weights."""
TRAINED_LEN = 4096
PROMPT_LEN, OUTPUT_LEN = 1024, 256
BATCHES = (1, 64)
EVERY_BATCH = tuple(2**exponent for exponent in range(11))


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes to train and to serve."""

    shape: ModelShape
    n_parameters: int
    n_active_parameters: int
    training_flops_per_token: float
    """Forward and backward, in a sequence of TRAINED_LEN."""
    floors: tuple[ServingFloor, ...]
    """For each of BATCHES, on DEVICE."""

    @property
    def decoding_flops_per_token(self) -> float:
        """Of the mean decode step at batch 1."""
        return self.floors[0].cost.decode.flops


def on() -> Device:
    """The device of the floors."""
    return device(DEVICE)


def shapes() -> tuple[ModelShape, ...]:
    """The mixture, then the dense models of its active and of all its parameters."""
    mixture = model(MIXTURE)
    return (
        mixture,
        _dense(mixture, mixture.n_active_experts, "active"),
        _dense(mixture, mixture.n_experts, "total"),
    )


def served() -> tuple[Served, ...]:
    """Each of the shapes."""
    return tuple(
        Served(
            shape=shape,
            n_parameters=n_parameters(shape),
            n_active_parameters=n_active_parameters(shape),
            training_flops_per_token=sum(FORWARDS.values())
            * forward_flops(shape, 1, TRAINED_LEN)
            / TRAINED_LEN,
            floors=tuple(_floor(shape, batch) for batch in BATCHES),
        )
        for shape in shapes()
    )


def bytes_per_token(shape: ModelShape, batch_size: int) -> float:
    """Compulsory traffic of the mean decode step, over the tokens that it generates."""
    return serving_cost(shape, _workload(batch_size)).decode.bytes / batch_size


def _dense(mixture: ModelShape, n_experts: int, which: str) -> ModelShape:
    return msgspec.structs.replace(
        mixture,
        name=f"dense, {which} size",
        d_ff=n_experts * mixture.d_ff,
        n_experts=1,
        n_active_experts=1,
    )


def _workload(batch_size: int) -> ServingWorkload:
    return ServingWorkload(batch_size=batch_size, prompt_len=PROMPT_LEN, output_len=OUTPUT_LEN)


def _floor(shape: ModelShape, batch_size: int) -> ServingFloor:
    return serving_floor(shape, _workload(batch_size), calibration=None, device=on())
