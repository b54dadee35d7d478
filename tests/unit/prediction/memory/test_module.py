"""A captured module's memory, against the same module in closed form."""

import pytest
import torch

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.module_capture import capture_module
from peakward.models.presets import model
from peakward.prediction.memory.peak import module_memory, peak_memory
from peakward.records.case import Configuration, ModelCase, Workload
from tiers import in_full


@pytest.mark.parametrize("attention", ["sdpa", *in_full(["naive"])])
@pytest.mark.parametrize("pass_", ["train_step", *in_full(["forward", "forward_backward"])])
def test_the_reference_decoder_as_anyone_s_module_holds_as_much_as_in_closed_form(attention, pass_):
    """To 0.15%. The closed form also builds the model, weight by weight in fp32, and what that leaves free,
    the 30 MB of a table, serves the step."""
    with torch.device("meta"):
        module = Decoder(model("small"), implementation(attention))
    ids = torch.zeros(4, 256, dtype=torch.long)
    inputs = (ids,) if pass_ == "forward" else (ids, ids)
    found = module_memory(capture_module(module, inputs, pass_=pass_))
    case = ModelCase(
        model=model("small"),
        workload=Workload(batch_size=4, seq_len=256, pass_=pass_),
        configuration=Configuration(attention=attention),
        device="cuda",
    )
    closed = peak_memory(case)
    assert found.phase == closed.phase
    assert found.peak_bytes == pytest.approx(closed.peak_bytes, rel=0.0015)
    left = 32 * 2**20 + 0.01 * closed.reserved_bytes
    assert found.reserved_bytes == pytest.approx(closed.reserved_bytes, abs=left)
    assert found.peak.parameters_bytes == closed.peak.parameters_bytes
    assert found.peak.optimizer_state_bytes == pytest.approx(
        closed.peak.optimizer_state_bytes, rel=1e-5
    )
