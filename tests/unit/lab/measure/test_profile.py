"""The trace that a profile writes: which ranges it holds, where, how often, and what lies in them."""

import gzip
import json
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import pytest
import torch

from peakward.lab.levers.prepare import prepare
from peakward.lab.measure import jobs
from peakward.lab.measure.messages import ProfileRequest
from peakward.lab.measure.profile import WARMUP_STEPS, profile
from peakward.lab.measure.site import Site
from peakward.records.case import Configuration, ModelCase, OperatorCase, Workload

N_LAYERS, N_STEPS = 2, 3


class Event(NamedTuple):
    """Of a trace: what the host did, in microseconds."""

    name: str
    category: str
    start: float
    end: float
    arguments: dict

    def holds(self, other: "Event") -> bool:
        return self.start <= other.start and other.end <= self.end


def read(path) -> list[Event]:
    found = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [
        Event(each["name"], each["cat"], each["ts"], each["ts"] + each["dur"], each.get("args", {}))
        for each in found
        if each["ph"] == "X" and each["cat"] in ("cpu_op", "user_annotation")
    ]


@pytest.fixture
def make_case(make_shape):
    def make(*, pass_="train_step", workload=None, **configuration):
        return ModelCase(
            model=make_shape(n_layers=N_LAYERS),
            workload=Workload(batch_size=2, seq_len=8, pass_=pass_, **(workload or {})),
            configuration=Configuration(**configuration),
            device="cpu",
        )

    return make


@pytest.fixture
def traced(tmp_path):
    """traced(case): the events of its trace; the worker's own words are kept in `told`."""
    path = tmp_path / "t.json.gz"

    def trace(case, prepare=prepare, told=None):
        bench = jobs.Bench(Site(), prepare, (told if told is not None else []).append)
        request = ProfileRequest(case=case, path=str(path), n_steps=N_STEPS, with_stack=False)
        answer = profile(request, bench)
        assert (answer.path, answer.n_steps) == (str(path), N_STEPS)
        assert answer.profiled_step_s > 0
        assert [each.name for each in tmp_path.iterdir()] == [path.name]
        return read(path)

    return trace


def ranges(events, name):
    return [each for each in events if each.name == f"peakward::{name}"]


def inside(events, name, outer):
    """The ranges of that name, each of which lies in exactly one of the outer ones."""
    found = ranges(events, name)
    for each in found:
        assert sum(around.holds(each) for around in ranges(events, outer)) == 1, (name, outer)
    return found


def test_ranges_lie_in_one_another_once_for_each_layer_and_step(make_case, traced):
    events = traced(make_case())
    assert len(ranges(events, "step")) == N_STEPS
    for phase in ("forward", "backward", "optimizer"):
        assert len(inside(events, phase, "step")) == N_STEPS
    for n in range(N_LAYERS):
        assert len(inside(events, f"block {n}", "forward")) == N_STEPS
    attentions = ranges(events, "attention")
    assert len(attentions) == N_LAYERS * N_STEPS
    blocks = [each for n in range(N_LAYERS) for each in ranges(events, f"block {n}")]
    assert all(sum(block.holds(each) for block in blocks) == 1 for each in attentions)
    for part in ("scores", "softmax", "values"):
        assert len(inside(events, f"attention.{part}", "attention")) == N_LAYERS * N_STEPS


def test_operators_lie_where_they_belong(make_case, traced):
    events = traced(make_case())
    operators = [each for each in events if each.category == "cpu_op"]

    def within(name, outer):
        found = [each for each in operators if each.name == name]
        around = ranges(events, outer)
        return [any(outer.holds(each) for outer in around) for each in found]

    assert all(within("SoftmaxBackward0", "backward")) and within("SoftmaxBackward0", "backward")
    assert within("aten::_softmax", "attention.softmax").count(True) == N_LAYERS * N_STEPS
    assert all(within("aten::embedding", "forward"))
    # Scores and values are one matmul each.
    for part in ("scores", "values"):
        assert within("aten::bmm", f"attention.{part}").count(True) == N_LAYERS * N_STEPS
    assert any(within("aten::_foreach_addcdiv_", "optimizer"))
    assert all(any(step.holds(each) for step in ranges(events, "step")) for each in operators)


def test_shapes_are_recorded(make_case, traced):
    softmax = next(each for each in traced(make_case()) if each.name == "aten::_softmax")
    assert softmax.arguments["Input Dims"][0] == [2, 4, 8, 8]


def test_micro_batches_have_phases_of_their_own(make_case, traced):
    events = traced(
        make_case(pass_="forward_backward", workload={"accumulate": 2}, attention="sdpa")
    )
    assert len(inside(events, "forward", "step")) == 2 * N_STEPS
    assert len(inside(events, "backward", "step")) == 2 * N_STEPS
    assert len(inside(events, "attention", "forward")) == 2 * N_LAYERS * N_STEPS
    assert ranges(events, "attention.scores") == ranges(events, "optimizer") == []


def test_an_operator_has_its_parts(traced):
    case = OperatorCase(
        batch_size=1, n_heads=2, seq_len=8, head_dim=4, pass_="forward_backward", device="cpu"
    )
    events = traced(case)
    assert len(inside(events, "attention", "forward")) == N_STEPS
    assert len(inside(events, "backward", "step")) == N_STEPS
    for part in ("scores", "softmax", "values"):
        assert len(inside(events, f"attention.{part}", "attention")) == N_STEPS


@pytest.mark.parametrize("lengths", [(), (4, 8, 6)])
def test_every_shape_is_warm_before_the_profile(lengths, make_case, traced):
    told = []
    events = traced(make_case(pass_="forward", workload={"varying_seq_lens": lengths}), told=told)
    n_warmup = WARMUP_STEPS * (len(lengths) or 1)
    assert [(each.stage, each.total) for each in told] == [
        ("building", None),
        ("warming up", n_warmup),
        ("profiling", N_STEPS),
    ]
    assert len(ranges(events, "step")) == N_STEPS


class Failing:
    """A prepared case whose step fails while it is profiled."""

    def __init__(self, prepared):
        self._prepared, self._n = prepared, 0
        self.ranged, self.uncaptured = prepared.ranged, None

    def step(self, *marks):
        self._n += 1
        if self._n == WARMUP_STEPS + 3:
            raise ValueError("planted")
        self._prepared.step(*marks)


def test_a_step_that_fails_leaves_neither_file_nor_profiler_nor_ranges(
    make_case, traced, tmp_path, watched
):
    with prepare(make_case()) as step:

        @contextmanager
        def failing(_case):
            yield Failing(step)

        with pytest.raises(ValueError, match="planted"):
            traced(make_case(), prepare=failing)
        assert list(tmp_path.iterdir()) == []
        assert not torch.autograd._profiler_enabled()
        assert watched(step.step).ranges == ()
    assert len(ranges(traced(make_case()), "step")) == N_STEPS


class Captured:
    """A prepared step that says it is replayed, and whose uncaptured one may run out of memory."""

    def __init__(self, prepared, *, error):
        self._prepared, self._error = prepared, error
        self.ranged, self.step = prepared.ranged, prepared.step

    def uncaptured(self, mark):
        self._prepared.step(mark)
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    "error",
    [
        None,
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_captured_step_is_rehearsed_once_before_the_profiled_ones(error, make_case, traced):
    @contextmanager
    def captured(case):
        with prepare(case) as step:
            yield Captured(step, error=error)

    events = traced(make_case(), prepare=captured)
    (rehearsal,) = ranges(events, "rehearsal")
    steps = ranges(events, "step")
    assert len(steps) == N_STEPS
    assert all(rehearsal.end <= each.start for each in steps)
    for phase in ("forward", "backward", "optimizer"):
        assert sum(rehearsal.holds(each) for each in ranges(events, phase)) == 1


def test_a_rehearsal_that_fails_otherwise_is_a_failure(make_case, traced):
    @contextmanager
    def captured(case):
        with prepare(case) as step:
            yield Captured(step, error=RuntimeError("planted"))

    with pytest.raises(RuntimeError, match="planted"):
        traced(make_case(), prepare=captured)


def test_a_step_that_is_not_captured_has_no_rehearsal(make_case):
    with prepare(make_case()) as step:
        assert step.uncaptured is None


def test_steps_timed_after_a_profile_open_no_range(make_case, tmp_path, watched):
    """In the same process and on the same model, as a test can and `Workers` never does."""
    with prepare(make_case()) as step:
        bench = jobs.Bench(Site(), lambda _case: nullcontext(step), lambda _event: None)
        path = tmp_path / "t.json.gz"
        profile(ProfileRequest(case=step.case, path=str(path), n_steps=1, with_stack=False), bench)
        assert watched(step.step).ranges == ()
