"""The measuring room on a real GPU: events, limits, sensors, and a worker that runs out of memory."""

import os

import msgspec
import pytest
import torch

from peakward.lab.measure import memory, nvml, probe
from peakward.lab.measure.clock import CudaClock
from peakward.lab.measure.failure import of_exception
from peakward.lab.measure.in_process import measure_step
from peakward.lab.measure.isolated import Workers
from peakward.lab.measure.sensors import read_sample
from peakward.lab.measure.telemetry import Sampler, read_energy_j
from peakward.lab.measure.timer import run_steps
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.measurement import Protocol
from peakward.records.model_shape import ModelShape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

GIB = 2**30
PROTOCOL = Protocol(max_timed_s=1.0, timeout_s=300.0)
SHAPE = ModelShape(
    name="tiny",
    vocab_size=1000,
    n_layers=2,
    d_model=256,
    d_ff=768,
    n_heads=4,
    n_kv_heads=4,
    head_dim=64,
    max_seq_len=512,
)


def case(batch_size=4, **changes):
    return msgspec.structs.replace(
        ModelCase(
            model=SHAPE, workload=Workload(batch_size=batch_size, seq_len=256), device="cuda"
        ),
        **changes,
    )


def sleeping(cycles):
    return lambda: torch.cuda._sleep(cycles)


@pytest.fixture(scope="module")
def workers():
    with Workers() as workers:
        yield workers


def test_events_time_the_device_and_the_host_does_not_wait():
    clock = CudaClock()
    clock.reserve(2)
    torch.cuda.synchronize()
    clock.mark(0)
    torch.cuda._sleep(50_000_000)
    clock.mark(1)
    assert not clock._events[1].query()
    clock.wait(1)
    assert clock.between_s(0, 1) > 0.01


def test_events_are_made_once():
    clock = CudaClock()
    clock.reserve(4)
    events = list(clock._events)
    clock.reserve(2)
    clock.reserve(4)
    assert clock._events == events


def test_the_queue_never_runs_dry_and_the_lead_is_bounded():
    """The device never waits between steps: their sum is the whole loop's time on the device."""
    clock = CudaClock()
    times = run_steps(sleeping(200_000), clock, max_steps=500, done=lambda progress: False)
    assert len(times) == 500
    assert sum(times) == pytest.approx(clock.between_s(0, 500), rel=1e-3)


def test_torch_and_nvml_mean_the_same_gpu():
    gpu = nvml.visible_gpu()
    nvml.check_is(gpu, str(torch.cuda.get_device_properties(0).uuid))
    environment = probe.environment("cuda")
    assert environment.device_name == torch.cuda.get_device_name(0)
    assert environment.compute_capability == "{}.{}".format(*torch.cuda.get_device_capability(0))
    assert environment.torch == torch.__version__
    assert environment.cuda == torch.version.cuda
    total = torch.cuda.get_device_properties(0).total_memory
    assert 0.95 < total / environment.device_memory_bytes <= 1.0


def test_sensors():
    sample = read_sample(nvml.visible_gpu())
    assert 100 < sample.sm_clock_mhz < 4000
    assert 10 < sample.power_w < 2000
    assert 10 < sample.temperature_c < 120
    assert read_energy_j(nvml.visible_gpu()) > 0


def test_energy_over_a_long_region():
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    clock = CudaClock()
    with Sampler(nvml.visible_gpu()) as sampler:
        times = run_steps(
            lambda: torch.mm(a, a), clock, max_steps=50_000, done=lambda p: p.elapsed_s > 1.0
        )
    found = sampler.telemetry(len(times))
    assert found.n_samples >= 8
    assert found.sm_clock_mhz.low > 100
    assert 20 < found.energy_per_step_j * len(times) / sum(times) < 2000


def test_the_allocator_keeps_to_its_limit_and_then_forgets_it():
    with memory.limited("cuda", 2 * GIB, context_bytes=GIB):
        torch.empty(GIB // 2, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError) as raised:
            torch.empty(3 * GIB // 2, dtype=torch.uint8, device="cuda")
    assert of_exception(raised.value).status == "oom"
    torch.empty(3 * GIB // 2, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()


def test_release_gives_everything_back():
    a = torch.randn(1024, 1024, device="cuda")
    torch.mm(a, a)  # takes a cuBLAS workspace
    floor = memory.release("cuda") - a.numel() * a.element_size()
    del a
    assert memory.is_clean("cuda", floor, memory.release("cuda"))


def test_a_training_step_in_a_worker(workers):
    found = workers.measure(case(), PROTOCOL)
    assert found.status == "ok", found.reason
    assert [each.phase for each in found.phases] == ["forward", "backward", "optimizer"]
    assert found.memory.peak_reserved_bytes >= found.memory.peak_allocated_bytes > 0
    assert GIB // 10 < found.memory.context_bytes < 4 * GIB
    assert found.telemetry.n_samples > 0
    whole = found.summary.median_s.estimate
    assert sum(each.median_s for each in found.phases) < 3 * whole
    assert workers._process is not None, "a clean case retired its worker"


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(precision="bf16", attention="sdpa", compile="default"),
        Configuration(precision="bf16-mixed", cuda_graphs=True),
    ],
)
def test_levers_leave_a_worker_clean(workers, configuration):
    found = workers.measure(case(configuration=configuration), PROTOCOL)
    assert found.status == "ok", found.reason
    assert (found.compile is not None) == (configuration.compile != "none")
    assert workers._process is not None, "a clean case retired its worker"


def test_an_oom_under_a_limit_is_a_status_and_the_next_case_runs(workers):
    limited = workers.measure(case(batch_size=64, memory_limit_bytes=GIB), PROTOCOL)
    assert limited.status == "oom"
    assert workers.measure(case(), PROTOCOL).status == "ok"


def test_an_oom_of_the_whole_device_is_a_status(workers):
    ended = workers.measure(case(batch_size=200_000), PROTOCOL)
    assert ended.status == "oom", ended.reason


def test_turns(workers):
    graphs = case(configuration=Configuration(cuda_graphs=True))
    protocol = msgspec.structs.replace(PROTOCOL, max_timed_s=0.3)
    timed = workers.turns((case(), graphs, case()), protocol)
    assert timed.status == "ok", timed.reason
    assert len(timed.turns) == 3
    assert all(turn.median_s > 0 and turn.peak_bytes > 0 for turn in timed.turns)


def test_the_first_step_of_a_fresh_process(workers):
    found = workers.first_step(case())
    assert found.module_load_s > 0
    assert found.n_device_allocations > 0
    assert 0 < found.allocation_s < found.profiled_s


def test_our_own_processes_do_not_make_the_gpu_busy(workers):
    """This process, which holds a context too, counts as ours here."""
    assert workers.measure(case(), PROTOCOL).status == "ok"
    reason = probe.busy_reason(
        nvml.visible_gpu(),
        own_pids=(os.getpid(), workers._process.pid),
        own_bytes=workers._held_bytes + torch.cuda.memory_reserved() + GIB,
    )
    assert reason is None


def test_a_stranger_s_memory_makes_the_gpu_busy():
    held = torch.empty(3 * GIB, dtype=torch.uint8, device="cuda")
    assert probe.busy_reason(nvml.visible_gpu(), n_samples=0) is not None
    del held
    torch.cuda.empty_cache()


def test_a_live_step():
    net = torch.nn.Linear(512, 512, device="cuda")
    before = net.weight.detach().clone()
    optimizer = torch.optim.AdamW(net.parameters())

    def step():
        optimizer.zero_grad()
        loss = net(torch.randn(64, 512, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    drawn = torch.cuda.get_rng_state()
    found = measure_step(step, name="mine", model=net, optimizer=optimizer, protocol=PROTOCOL)
    assert found.status == "ok", found.reason
    assert found.case.device == "cuda"
    assert torch.equal(before, net.weight)
    assert torch.equal(drawn, torch.cuda.get_rng_state())
    assert found.environment.device_uuid == probe.environment("cuda").device_uuid
