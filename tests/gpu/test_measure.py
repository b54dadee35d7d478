"""Cases measured on CUDA by a worker: memory limits, what is read from the device."""

import msgspec
import pytest

from peakward.lab.measure.isolated import Workers
from peakward.records.protocol import Protocol

pytestmark = pytest.mark.gpu

GIB = 2**30
PROTOCOL = Protocol(warmup_steps=2, min_steps=5, max_steps=20, max_timed_s=0.5)


@pytest.fixture(scope="module")
def workers():
    with Workers() as started:
        yield started


def test_a_case_over_its_limit_is_oom_and_the_next_one_runs(workers, make_case):
    large = make_case(
        shape={"n_layers": 8, "d_model": 1024, "head_dim": 512, "d_ff": 4096},
        workload={"batch_size": 64},
    )
    limited = msgspec.structs.replace(large, memory_limit_bytes=2 * GIB)
    refused = workers.measure(limited, PROTOCOL)
    assert refused.status == "oom", refused.reason
    assert refused.reason

    fitting = workers.measure(large, PROTOCOL)
    assert fitting.status == "ok", fitting.reason
    assert fitting.memory.peak_reserved_bytes + (fitting.memory.context_bytes or 0) > 2 * GIB

    roomy = msgspec.structs.replace(large, memory_limit_bytes=40 * GIB)
    assert workers.measure(roomy, PROTOCOL).status == "ok"


def test_what_a_measurement_on_cuda_holds(workers, make_case):
    found = workers.measure(make_case(attention="sdpa", precision="bf16"), PROTOCOL)
    assert found.status == "ok", found.reason
    assert found.environment.device_uuid.startswith(("GPU-", "MIG-"))
    assert found.environment.cuda is not None
    assert found.summary.n >= 5
    assert 0 < found.summary.min_s <= found.summary.median_s.estimate
    assert {each.phase for each in found.phases} == {"forward", "backward", "optimizer"}
    assert found.memory.peak_reserved_bytes >= found.memory.peak_allocated_bytes > 0
    assert found.loss > 0


def test_a_graph_s_activations_count_towards_its_peak(workers, make_case):
    """They live in the graph's pool, which a replay does not allocate from."""
    case = make_case(workload={"batch_size": 64}, attention="sdpa", precision="bf16")
    graphs = msgspec.structs.replace(
        case, configuration=msgspec.structs.replace(case.configuration, cuda_graphs=True)
    )
    eager, captured = (workers.measure(each, PROTOCOL) for each in (case, graphs))
    assert captured.status == "ok", captured.reason
    assert captured.phases == ()
    assert captured.memory.peak_allocated_bytes > 0.9 * eager.memory.peak_allocated_bytes
