"""Two recorded steps of a case: what is known of them, and that it adds up."""

from collections import Counter
from contextlib import nullcontext

import msgspec
import pytest

from peakward.lab.levers.prepare import prepare
from peakward.lab.measure import jobs, memory_record
from peakward.lab.measure.allocations import recording
from peakward.lab.measure.memory_record import _Noted, record_memory, told_modules
from peakward.lab.measure.messages import MemoryRequest
from peakward.lab.measure.site import Site
from peakward.prediction.memory.peak import peak_memory
from peakward.prediction.parameters import n_parameters
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.traces.memory import case_memory
from peakward.traces.memory.case_memory import PURPOSES, part, recorded
from peakward.traces.memory.memory import memory

PER_STATE = 4
"""The optimiser's count of its steps, in fp32 on the host for each parameter."""


@pytest.fixture
def make_case(make_shape):
    def make(pass_="train_step", seq_len=16, accumulate=1, **configuration):
        return ModelCase(
            model=make_shape(n_layers=2),
            workload=Workload(batch_size=2, seq_len=seq_len, pass_=pass_, accumulate=accumulate),
            configuration=Configuration(**configuration),
            device="cpu",
        )

    return make


@pytest.fixture
def record(tmp_path):
    path = tmp_path / "m.pickle.gz"

    def make(case, told=None):
        path.unlink(missing_ok=True)
        bench = jobs.Bench(Site(), prepare, (told if told is not None else []).append)
        answer = record_memory(MemoryRequest(case=case, path=str(path)), bench)
        assert answer.marks.peak_allocated_bytes is None
        return recorded(memory(path), answer.marks, "cpu")

    return make


def purposes(found, phase):
    (peak,) = [each for each in found.phases if each.phase == phase]
    shares = {each.name: each.n_bytes for each in peak.purposes}
    assert sum(shares.values()) == peak.allocated_bytes
    return shares


def test_a_cases_own_tensors_are_exact(make_case, record):
    case, told = make_case(), []
    shares = purposes(record(case, told), "optimizer")
    n, n_tensors = n_parameters(case.model), 2 * 6 + 3
    assert shares["parameters"] == shares["gradients"] == 4 * n
    assert shares["optimizer_state"] == 8 * n + PER_STATE * n_tensors
    # Ids and targets of eight steps.
    assert shares["inputs"] == 8 * 2 * 2 * 16 * 8
    assert [each.stage for each in told] == ["building", "recording memory"]


def test_half_precision_halves_them(make_case, record):
    case = make_case(precision="bf16")
    shares = purposes(record(case), "optimizer")
    assert shares["parameters"] == shares["gradients"] == 2 * n_parameters(case.model)


def test_phases_and_the_timeline_agree(make_case, record):
    found = record(make_case())
    assert [each.phase for each in found.phases] == ["forward", "backward", "optimizer"]
    highest = max(each.allocated_bytes for each in found.phases)
    assert highest == max(sum(point.n_bytes) for point in found.timeline)
    assert found.peak_bytes >= highest
    assert [each.event for each in found.timeline] == sorted({e.event for e in found.timeline})


def test_activations_are_those_of_the_prediction(make_case, record):
    """The CPU keeps for backward what the prediction of a GPU says, but for attention: there the
    softmax's result alone is the scores' size."""
    case = make_case()
    found = record(case)
    by_part = Counter()
    for each in found.modules:
        by_part[part(each.module)] += each.n_bytes
    tokens, shape = 2 * 16, case.model
    # Gate and up, kept whole by the chunks that the activation and the product read.
    assert by_part["blocks.*.ff.up"] == 2 * tokens * 2 * shape.d_ff * 4
    assert by_part["blocks.*.attention.softmax"] == 2 * 2 * shape.n_heads * 16 * 16 * 4
    assert by_part["blocks.*.ff"] == 2 * tokens * 2 * shape.d_ff * 4
    on_gpu = peak_memory(msgspec.structs.replace(case, device="cuda")).peak
    assert purposes(found, "optimizer")["gradients"] == on_gpu.parameters_bytes


def test_what_is_recomputed_is_an_activation_of_the_backward_pass(make_case, record):
    plain = record(make_case(seq_len=64))
    again = record(make_case(seq_len=64, checkpointing="every-block"))
    assert purposes(again, "forward")["activations"] < purposes(plain, "forward")["activations"]
    assert "activations" in purposes(again, "backward")
    assert {part(each.module) for each in again.modules} >= {"blocks.*.ff", "blocks.*.ff.up"}


def test_micro_batches_add_to_one_gradient(make_case, record):
    case = make_case("forward_backward", accumulate=2)
    found = record(case)
    assert [each.phase for each in found.phases] == ["forward", "backward"]
    assert purposes(found, "forward")["gradients"] == 4 * n_parameters(case.model)


@pytest.mark.parametrize("pass_", ["prefill", "decode"])
def test_the_cache_is_told(make_case, record, pass_):
    case = make_case(pass_)
    shares = purposes(record(case), "forward")
    shape = case.model
    assert shares["cache"] == 2 * 2 * 2 * shape.n_kv_heads * 16 * shape.head_dim * 4
    assert "activations" not in shares


def test_the_largest_are_named_by_size_and_place(make_case, record):
    found = record(make_case(seq_len=64))
    sizes = [each.n_bytes for each in found.largest]
    assert sizes == sorted(sizes, reverse=True)
    assert any(each.part == "readout.head" and each.made_in == "forward" for each in found.largest)
    assert {each.source for each in found.largest} == {None}


def test_a_captured_step_is_refused(make_case, record):
    with pytest.raises(
        PeakwardError, match="expected a case whose steps allocate, got cuda-graphs"
    ):
        record(make_case(cuda_graphs=True))


class Trace:
    """Stands for a GPU's trace: what was called, and how much was recorded then."""

    def __init__(self):
        self.called = []

    def start(self):
        self.called.append("start")

    def stop(self):
        self.called.append("stop")


def test_the_last_step_is_traced_whole(make_case):
    trace = Trace()
    bench = jobs.Bench(Site(), prepare, lambda _: None)
    with recording("cpu") as recorded, jobs.built(make_case(), bench) as (prepared, meter):
        noted = _Noted(recorded, "cpu")
        noted.step(prepared)
        noted.last_step(prepared, trace)
        noted.end(meter)
        recorded.stop()
    marks = noted.marks()
    assert trace.called == ["start", "stop"]
    assert marks.traced[0] <= marks.begin < marks.end <= marks.traced[1]
    assert [phase for _, phase in marks.phases] == 2 * ["forward", "backward", "optimizer"]


def test_without_a_trace_the_last_step_is_as_the_others(make_case, record, monkeypatch):
    def refused(path):
        raise AssertionError(path)

    monkeypatch.setattr("peakward.lab.measure.memory_record.KernelTrace", refused)
    assert record(make_case()).phases


def test_copies_of_weights_that_autocast_makes_are_no_activations(make_case, record):
    case = make_case(precision="bf16-mixed", seq_len=256)
    found, shape = record(case), case.model
    by_block = 4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff
    multiplied = shape.n_layers * by_block + shape.vocab_size * shape.d_model
    column = PURPOSES.index("weight_casts")
    assert max(point.n_bytes[column] for point in found.timeline) == 2 * multiplied
    on_gpu = peak_memory(msgspec.structs.replace(case, device="cuda"))
    assert on_gpu.phase == "backward"
    assert purposes(found, "backward")["weight_casts"] == on_gpu.peak.weight_casts_bytes


def test_copies_of_weights_that_a_recomputed_block_makes_again_are_told(
    make_case, record, monkeypatch
):
    """Among all allocations: a CPU that multiplies in bf16 makes some forty larger ones, of its own."""
    monkeypatch.setattr(case_memory, "MOST_LARGE", 1000)
    found = record(make_case(precision="bf16-mixed", checkpointing="every-block"))
    made_in = {each.made_in for each in found.largest if each.purpose == "weight_casts"}
    assert made_in == {"forward", "backward"}


def test_without_autocast_no_weight_is_copied(make_case, record):
    assert "weight_casts" not in purposes(record(make_case()), "forward")


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_telling_of_casts_changes_no_allocation(make_case, record, monkeypatch, precision):
    """The same events of the same sizes, so the same timeline, with the telling and without."""
    case = make_case(precision=precision)
    told = record(case)
    monkeypatch.setattr(memory_record, "told_casts", lambda model, tell: nullcontext())
    plain = record(case)

    def timeline(found):
        return [(each.event, sum(each.n_bytes)) for each in found.timeline]

    assert timeline(told) == timeline(plain)
    assert told.peak_bytes == plain.peak_bytes


@pytest.fixture
def told(make_shape):
    """told(pass, **configuration): what is said over one step, and what is left of the hooks."""

    def run(pass_, **configuration):
        case = ModelCase(
            model=make_shape(n_layers=2),
            workload=Workload(batch_size=2, seq_len=8, pass_=pass_),
            configuration=Configuration(**configuration),
            device="cpu",
        )
        said = []
        with prepare(case) as step:
            with told_modules(step.model, said.append):
                step.step()
            n_said = len(said)
            step.step()
            assert len(said) == n_said, "nothing is told afterwards"
            assert not any(each._forward_hooks for each in step.model.modules())
        return said

    return run


def test_modules_enter_and_leave_in_order(told):
    said = told("forward", attention="sdpa")
    assert said[:2] == ["embedding", ""]
    assert said[-1] == ""
    begin = said.index("blocks.1")
    assert said[begin : begin + 5] == [
        "blocks.1",
        "blocks.1.attention_norm",
        "blocks.1",
        "blocks.1.attention",
        "blocks.1.attention.qkv",
    ]


def test_naive_attention_has_its_parts(told):
    said = told("forward")
    parts = ["scores", "softmax", "values"]
    assert [each for each in said if each.split(".")[-1] in parts] == [
        f"blocks.{block}.attention.{part}" for block in range(2) for part in parts
    ]


def test_a_recomputed_block_runs_again_and_leaves(told):
    plain = told("forward_backward")
    again = told("forward_backward", checkpointing="every-block")
    assert again.count("blocks.1.attention.qkv") == 2 * plain.count("blocks.1.attention.qkv")
    assert set(again) == set(plain)
    assert again[-1] == ""


def test_compiled_modules_are_left_alone(make_shape):
    case = ModelCase(
        model=make_shape(n_layers=2), workload=Workload(batch_size=1, seq_len=8), device="cpu"
    )
    with prepare(case) as step:
        step.model.blocks[0].compile()
        with told_modules(step.model, lambda path: None):
            assert not step.model.blocks[0].ff.up._forward_hooks
            assert step.model.blocks[1].ff.up._forward_hooks
