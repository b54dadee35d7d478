"""Every piece of code that a study plans for a GPU, at sizes that take milliseconds."""

import pytest
import torch

from peakward.lab.levers.prepare import prepare
from peakward.lab.micro.piece import COMPILED
from peakward.lab.micro.softmax import ONLINE_KERNEL
from peakward.lab.micro.work import piece_work
from peakward.records.case import MicroCase
from peakward.studies.fusion import PIECES as FUSION
from peakward.studies.layout import PIECES as LAYOUT

pytestmark = pytest.mark.gpu

SIZES = {
    "softmax": (64, 1000),
    "rms-norm": (64, 1000),
    "cross-entropy": (64, 1000),
    "matmul-operands": (256,),
    "addition": (256,),
    "heads": (2, 4, 128, 64),
    "projection": (128, 256),
    "view": (48, 64),
    "matmul": (256,),
}
MOST_TERMS = 1000
BOUNDS = {"fp32": MOST_TERMS * 2.0**-24, "tf32": 4 * 2.0**-11, "bf16": 4 * 2.0**-8}
"""u for each term of a sum in fp32; in the others, which sum in fp32, operands and results are rounded."""
PIECES = [
    (subject, piece)
    for planned in (FUSION, LAYOUT)
    for subject in planned
    for piece in planned[subject]
]


@pytest.fixture(autouse=True)
def fresh():
    yield
    torch._dynamo.reset()


def run(subject, piece, precision="fp32"):
    case = MicroCase(
        subject=subject, piece=piece, sizes=SIZES[subject], precision=precision, device="cuda"
    )
    with prepare(case) as step:
        step.step()
        return piece_work(step.piece)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("subject", "piece"), PIECES)
def test_each_piece_is_near_fp64(subject, piece, precision):
    found = run(subject, piece, precision)
    if found.result != "refused":
        assert found.difference <= BOUNDS[precision]
    # A kernel that is launched past the dispatcher is counted by nobody.
    assert (found.moved_bytes is None) == (piece == ONLINE_KERNEL)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_torchs_product(precision):
    assert 0 < run("matmul", "torch", precision).difference <= BOUNDS[precision]


@pytest.mark.parametrize("subject", ["softmax", "rms-norm"])
@pytest.mark.parametrize("piece", [COMPILED, "peakward"])
def test_fused_kernels_move_inputs_and_result_alone(subject, piece):
    found = run(subject, piece)
    # RMSNorm's kernel also writes a factor for each row.
    assert found.least_bytes <= found.moved_bytes <= found.least_bytes + 4 * SIZES[subject][0]
