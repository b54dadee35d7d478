"""What one GPU of a group holds more or less than one by itself."""

from peakward.prediction.communication.step import STORED_BYTES, parameter_bytes
from peakward.prediction.parameters import embedding_parameters, head_parameters, n_parameters
from peakward.records.case import ModelCase
from peakward.records.plan import Group

GATHERED_BLOCKS = 2
"""fsdp holds one block whole while it gathers the next."""


def added_bytes(case: ModelCase, group: Group) -> int:
    """Bytes that a GPU of the group needs beyond one by itself; negative where it needs less.

    ddp holds the gradients again, in the buckets that it reduces (`gradient_as_bucket_view` is off
    unless asked for). fsdp holds a share of parameters, gradients and moments, two blocks whole, one
    block's gradients, and what belongs to no block: tables and head.
    """
    trains, updates = case.workload.pass_ != "forward", case.workload.pass_ == "train_step"
    whole = parameter_bytes(case)
    if group.parallel == "ddp":
        return whole if trains else 0
    copies = 1 + trains + 2 * updates
    sharded_away = copies * (whole - whole // group.n_gpus)
    return _gathered_bytes(case, trains=trains) - sharded_away


def _gathered_bytes(case: ModelCase, *, trains: bool) -> int:
    shape = case.model
    rest = embedding_parameters(shape) + head_parameters(shape)
    block = (n_parameters(shape) - rest) // shape.n_layers
    blocks = GATHERED_BLOCKS + trains
    return (rest + blocks * block) * STORED_BYTES.get(case.configuration.precision, 4)
