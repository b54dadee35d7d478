"""Which keys a query may attend to, made anew in every block."""

from peakward.prediction.operators.positions import distances
from peakward.prediction.operators.tape import BOOL, Tape
from peakward.records.op_graph import Operand


def causal_mask(tape: Tape, seq: int, window: int | None) -> Operand:
    """(seq, seq) of bool."""
    distance = distances(tape, seq, seq)
    mask = tape.pointwise("ge", distance, dtype=BOOL)
    if window is not None:
        within = tape.pointwise("lt", distance, dtype=BOOL)
        mask = tape.pointwise("bitwise_and", mask, within)
    return mask
