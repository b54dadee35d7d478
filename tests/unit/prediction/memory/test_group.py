"""What one GPU of a group holds, by category and phase."""

import pytest

from peakward.models.presets import model
from peakward.prediction.communication import model_bytes
from peakward.prediction.memory.peak import peak_memory
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.plan import DeviceGroup

FSDP, DDP = (DeviceGroup(n_gpus=8, parallel=kind) for kind in ("fsdp", "ddp"))
GIB = 2**30


def case(pass_="train_step", seq_len=128, accumulate=1, **configuration):
    return ModelCase(
        model=model("llama-3-8b"),
        workload=Workload(batch_size=1, seq_len=seq_len, pass_=pass_, accumulate=accumulate),
        configuration=Configuration(**({"precision": "bf16"} | configuration)),
        device="cuda",
    )


def gathered(of, n_blocks):
    """Tables and head (2 · 128,256 · 4096 parameters) and so many blocks, of two bytes each."""
    table = 2 * 128_256 * 4096 * 2
    return table + n_blocks * (model_bytes(of) - table) / 32


def test_ddp_holds_the_gradients_again_in_its_buckets():
    of = case(seq_len=8192)  # Where the peak is in the backward pass.
    alone, shared = peak_memory(of), peak_memory(of, DDP)
    assert shared.peak_bytes - alone.peak_bytes == pytest.approx(model_bytes(of), rel=1e-4)
    forward = case("forward")
    assert peak_memory(forward, DDP).peak_bytes == peak_memory(forward).peak_bytes


def test_fsdp_holds_an_eighth_of_parameters_and_moments_and_what_is_gathered():
    of = case(seq_len=8192, attention="sdpa")
    found = peak_memory(of, FSDP)
    assert found.phase == "backward"
    whole = model_bytes(of)
    assert found.peak.optimizer_state_bytes == pytest.approx(2 * whole / 8, rel=1e-4)
    assert found.peak.parameters_bytes == pytest.approx(whole / 8 + gathered(of, 3), rel=1e-4)
    alone = peak_memory(of)
    assert found.peak.activations_bytes == alone.peak.activations_bytes
    assert found.peak.logits_bytes == alone.peak.logits_bytes


def test_fsdp_updates_an_eighth_with_an_eighth_of_the_temporaries():
    """Over lists AdamW makes the roots of all second moments at once: as many bytes as parameters."""
    of = case(checkpointing="every-block", attention="sdpa")
    alone, shared = peak_memory(of), peak_memory(of, FSDP)
    assert alone.phase == "optimizer"
    assert alone.peak.temporaries_bytes == pytest.approx(model_bytes(of), rel=1e-4)
    update = 5 * model_bytes(of) / 8  # Parameters, gradients, both moments, the roots.
    passes = 4 * model_bytes(of) / 8 + gathered(of, 3)
    assert shared.peak_bytes < max(update, passes) + 2 * GIB


def test_gradients_that_are_summed_over_micro_batches_wait_whole():
    """They are reduced once a step."""
    one, many = (peak_memory(case(accumulate=n), FSDP) for n in (1, 4))
    more = many.peak.gradients_bytes - one.peak.gradients_bytes
    assert many.peak.gradients_bytes == pytest.approx(model_bytes(case()), rel=1e-4)
    assert more > 10 * GIB


def test_more_gpus_hold_less():
    sizes = [
        peak_memory(case(), DeviceGroup(n_gpus=n, parallel="fsdp")).peak_bytes for n in (2, 4, 8)
    ]
    assert sizes == sorted(sizes, reverse=True)


def test_quantised_weights_are_not_sharded():
    work = Workload(batch_size=1, seq_len=64, pass_="decode")
    settings = Configuration(precision="bf16", weights="int4:128")
    asked = ModelCase(
        model=model("llama-3-8b"), workload=work, configuration=settings, device="cuda"
    )
    assert peak_memory(asked, DDP).peak_bytes == peak_memory(asked).peak_bytes
    with pytest.raises(PeakwardError, match="expected dense weights for fsdp"):
        peak_memory(asked, FSDP)
