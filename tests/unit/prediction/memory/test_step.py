"""What is covered, and what is refused."""

import msgspec
import pytest
from torch.profiler import ProfilerActivity, profile

from peakward.lab.levers.model_step import ModelStep
from peakward.lab.levers.precision import parameter_dtype
from peakward.lab.models import layers
from peakward.models.presets import model
from peakward.prediction.memory import step
from peakward.prediction.memory.peak import peak_memory
from peakward.prediction.memory.step import planned
from peakward.prediction.memory.timeline import Timeline
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from tiers import in_full


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
        (case(precision="fp8", compile="reduce-overhead"), "compile of fp8 none or default"),
        (case(precision="fp8", compile="default", compile_scope="model"), "compile_scope block"),
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


# Building a model with quantised weights: never all of them densely.

SHAPE = msgspec.structs.replace(
    model("tiny"),
    n_layers=1,
    d_model=512,
    d_ff=2048,
    n_heads=4,
    n_kv_heads=4,
    head_dim=128,
    vocab_size=300,
)


def quantised_case(device="cuda", shape=SHAPE, **configuration):
    return ModelCase(
        model=shape,
        workload=Workload(batch_size=1, seq_len=64, pass_="decode"),
        configuration=Configuration(**configuration),
        device=device,
    )


def predicted(asked):
    line = Timeline()
    step._build_quantised(line, planned(asked))
    held = [0] * (len(line.phases) + 1)
    tensors = line.lifetimes().tensors()
    for each in tensors:
        for now in range(each.made, each.last + 1):
            held[now] += each.n_bytes
    return max(held), sum(each.n_bytes for each in tensors if each.category == "parameters")


def measured(asked):
    """The most that building the model held, and what stayed."""
    dtype = parameter_dtype(asked.configuration.precision)
    kept = []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept.append(ModelStep(asked, dtype))
    held = most = 0
    events = profiler.profiler.kineto_results.events()
    for each in sorted(events, key=lambda event: event.start_ns()):
        if each.name() == "[memory]":
            held += each.nbytes()
            most = max(most, held)
    return most, held


@pytest.mark.parametrize("weights", ["int8", "int4:128", *in_full(["int4:32-calibrated"])])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_build_holds_at_most_what_is_predicted(weights, precision, monkeypatch):
    """In two chunks of the largest weights, of which a byte an element is 2 to 3% of the peak; ids and the
    cache are some 260 KB beside."""
    for room in (step, layers):
        monkeypatch.setattr(room, "CHUNK_ELEMENTS", 1 << 19)
    settings = {"weights": weights, "precision": precision}
    most, left = measured(quantised_case("cpu", **settings))
    peak, parameters = predicted(quantised_case(**settings))
    assert peak == pytest.approx(most, rel=0.002)
    assert 0 <= left - parameters <= 2 * 4 * 64 * 128 * 4 + 8 * 8


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
def test_weights_of_fewer_bits_are_held_as_such(precision):
    """Of Llama 3 8B some 7 billion weights, in 8 bits or 4.125; a step's cast copies of dense ones apart."""
    shape = model("llama-3-8b")
    found = {
        weights: peak_memory(quantised_case(shape=shape, precision=precision, weights=weights)).peak
        for weights in ("dense", "int8", "int4:128")
    }
    n = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14_336)
    width = 2 if precision == "bf16" else 4
    for weights, bits in (("int8", 8), ("int4:128", 4.125)):
        spared = found["dense"].parameters_bytes - found[weights].parameters_bytes
        assert spared == pytest.approx(n * (width - bits / 8), rel=1e-3)
        assert found[weights].total_bytes < found["dense"].total_bytes - 0.95 * spared


def test_of_the_largest_draw_no_quantised_weight_is_densely_there():
    """The head's, drawn last, beside all that is kept; the cache of 64 positions is 8 MB more."""
    shape = model("llama-3-8b")
    asked = quantised_case(shape=shape, precision="bf16", weights="int4:128")
    found = peak_memory(asked)
    assert found.phase == "build"
    head = shape.vocab_size * shape.d_model
    assert found.peak_bytes - found.peak.parameters_bytes == pytest.approx(4 * head, rel=0.005)
