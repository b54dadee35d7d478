"""What a case fixes for all of its operators: sizes and types. Refuses what is not covered."""

from typing import NamedTuple

from peakward.predict.operators.tape import BFLOAT, FLOAT, tensor
from peakward.records.case import ModelCase, Precision
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape
from peakward.records.op_graph import Operand

_TYPES: dict[Precision, tuple[str, str]] = {
    "fp32": (FLOAT, FLOAT),
    "tf32": (FLOAT, FLOAT),
    "bf16": (BFLOAT, BFLOAT),
    "bf16-mixed": (FLOAT, BFLOAT),
}
"""What parameters are stored in, and what products are computed in."""


class Plan(NamedTuple):
    """Of one micro-batch of a case."""

    shape: ModelShape
    batch: int
    seq: int
    stored: str
    """Type of the parameters, the residual stream and the gradients of both."""
    compute: str
    """Type of the matrix products."""
    attention: str

    @property
    def hidden(self) -> Operand:
        """The residual stream: (batch, seq, d_model)."""
        return tensor(self.stored, self.batch, self.seq, self.shape.d_model)

    @property
    def tokens(self) -> int:
        """Rows of the linear layers."""
        return self.batch * self.seq


def plan(case: ModelCase) -> Plan:
    """The case's plan.

    Raises:
        PeakwardError: a setting whose operators this room does not know.
    """
    _check(case)
    stored, compute = _TYPES[case.configuration.precision]
    return Plan(
        shape=case.model,
        batch=case.workload.batch_size,
        seq=case.workload.seq_len,
        stored=stored,
        compute=compute,
        attention=case.configuration.attention,
    )


def _check(case: ModelCase) -> None:
    configuration = case.configuration
    _expect("precision", configuration.precision, *_TYPES)
    _expect("attention", configuration.attention, "naive", "sdpa", "sdpa-flash")
    _expect("compile", configuration.compile, "none")
    _expect("checkpointing", configuration.checkpointing, "none", "sqrt", "every-block")
    _expect("optimizer", configuration.optimizer, "adamw-foreach", "adamw-fused", "adamw-loop")
    _expect("cuda_graphs", configuration.cuda_graphs, False)
    _expect("device", case.device, "cpu")
    _expect("n_experts", case.model.n_experts, 1)
    _expect("varying_seq_lens", case.workload.varying_seq_lens, ())
    _expect_sizes(case)


def _expect_sizes(case: ModelCase) -> None:
    """Of smaller ones torch sees other layouts in the same strides, and some sums vanish."""
    shape, seq_len = case.model, case.workload.seq_len
    smallest = {
        "seq_len": (2, seq_len),
        "d_model": (2, shape.d_model),
        "head_dim": (3, shape.head_dim),
    }
    for size, (least, got) in smallest.items():
        if got < least:
            raise PeakwardError(
                f"expected {size} of {least} or more for operators in closed form, got {got}: "
                "capture the step instead, or change it"
            )
    if shape.positions == "rope" and shape.head_dim % 2:
        raise PeakwardError(
            f"expected an even head_dim, whose halves RoPE turns, got {shape.head_dim}: change it"
        )
    if shape.positions == "learned" and seq_len > shape.max_seq_len:
        raise PeakwardError(
            f"expected a seq_len up to the {shape.max_seq_len} learned positions, got {seq_len}: "
            "shorten it"
        )


def _expect(setting: str, got: object, *covered: object) -> None:
    if got not in covered:
        raise PeakwardError(
            f"expected {setting} {' or '.join(map(str, covered))} for operators in closed form, "
            f"got {got}: capture the step instead, or change it"
        )
