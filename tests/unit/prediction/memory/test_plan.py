"""What is covered, and what is refused."""

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.memory.peak import peak_memory
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError


def case(shape="tiny", device="cuda", changes=None, **configuration):
    return ModelCase(
        model=msgspec.structs.replace(model(shape), **(changes or {})),
        workload=Workload(batch_size=2, seq_len=64),
        configuration=Configuration(**configuration),
        device=device,
    )


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (case(device="cpu"), "device cuda"),
        (case(changes={"n_experts": 4}, compile="default"), "compile of a mixture"),
        (case(precision="fp8"), "precision fp32 or"),
        (case(optimizer="sgd"), "optimizer adamw-loop or"),
        (case(more=(("pace", "fast"),)), "levers whose work is described, got pace fast"),
        (case(compile="max-autotune"), "compile none or"),
        (case(compile="default", checkpointing="sqrt"), "checkpointing of compiled blocks none"),
        (case(attention="sdpa-math"), "a kernel of attention naive or"),
        (case(attention="sdpa-flash"), "inputs that torch's flash attention takes"),
        (case(attention="sdpa", changes={"head_dim": 20}), "remainder of head_dim by 8"),
        (case("llama-3-8b", attention="sdpa"), "a kernel of attention naive or"),
    ],
)
def test_what_is_not_covered_is_refused(made, says):
    with pytest.raises(PeakwardError, match=f"expected {says}"):
        peak_memory(made)


@pytest.mark.parametrize("attention", ["naive", "sdpa", "sdpa-cudnn", "sdpa-flash"])
@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed", "fp16-mixed"])
def test_half_types_go_with_every_fused_kernel(precision, attention):
    assert peak_memory(case(precision=precision, attention=attention)).peak_bytes > 0
