"""Notes under a plan's tables."""

from types import SimpleNamespace

import msgspec
import pytest

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.planning.plan import plan
from peakward.prediction.planning.site import site
from peakward.records.case import ModelCase, Workload
from peakward.report import plan_tables


@pytest.fixture(scope="module")
def planned():
    case = ModelCase(
        model=model("tiny"), workload=Workload(batch_size=1, seq_len=64), device="cuda"
    )
    return plan(case, [site(device("l4-24"))], command="peakward plan")


@pytest.mark.parametrize(("more", "said"), [(0, False), (64, True)])
def test_a_sequence_beyond_what_the_model_accepts_is_said_to_be(planned, more, said):
    longest = planned.case.model.max_seq_len + more
    longer = msgspec.structs.replace(planned.devices[0], longest_seq_len=longest)
    note = plan_tables.memory(msgspec.structs.replace(planned, devices=(longer,))).note
    assert ("The model accepts 16,384 tokens" in (note or "")) is said


def test_kernels_that_nobody_timed_are_named_and_what_a_compiler_fuses_as_one():
    def note(*names):
        return plan_tables.guessed_kernels([SimpleNamespace(never_measured=names)])

    assert note() is None
    own = note("peakward.rope", "peakward.rope_backward")
    assert own.startswith("No stored result has timed Peakward's rope. ")
    fused = note("inductor.pointwise", "inductor.inner_reduction")
    assert fused.startswith(
        "No stored result has timed the kernels that Inductor makes of such code. "
    )
    assert "Peakward's rope and the kernels" in note("peakward.rope", "inductor.pointwise")
