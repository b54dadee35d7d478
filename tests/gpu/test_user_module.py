"""Levers on a user's module on a GPU: they run, and their numbers hold."""

import math

import pytest
import torch

from peakward.lab.levers.module_check import check
from peakward.lab.levers.prepare import prepare
from peakward.lab.measure.live_module import LiveWorkers, live_case
from peakward.lab.measure.messages import Checked
from peakward.lab.models.given_module import given
from peakward.lab.numerics.verify import verify
from peakward.levers.catalogue import LEVERS, numerics_class, obstacle, outside_obstacle, pull
from peakward.records.measurement import Protocol

pytestmark = pytest.mark.gpu
SOURCES = ["py:tiny_gpt:build", "py:tiny_gpt:with_batch", "hf:llama", "hf:gpt2"]
NAMES = [
    each.name
    for each in LEVERS
    if each.name not in ("fp8", "flash", "flash-hopper", "flash-decode")
]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", NAMES)
def test_a_lever_s_numbers_hold(name, source, make_module_case):
    if source.startswith("hf:"):
        pytest.importorskip("transformers")
    base = make_module_case(source, device="cuda", workload={"seq_len": 32})
    lever = next(each for each in LEVERS if each.name == name)
    if lever.needs_precision:
        base = make_module_case(
            source, device="cuda", workload={"seq_len": 32}, precision="bf16-mixed"
        )
    candidate = pull(lever, base)
    if outside_obstacle(candidate) is not None:
        pytest.skip(outside_obstacle(candidate))
    capability = torch.cuda.get_device_capability()
    assert obstacle(lever, base, compute_capability=capability, has_compiler=True) is None
    check(base)
    found = verify(base, candidate, numerics_class(lever, candidate))
    assert (found.verdict, found.reason) == ("holds", None)


def test_a_captured_step_is_the_eager_one(make_module_case):
    """Without dropout, for a graph draws other numbers than eager steps."""
    losses = []
    for graphs in (False, True):
        case = make_module_case("py:tiny_gpt:build", device="cuda", cuda_graphs=graphs)
        with prepare(case) as step:
            step.model.eval()
            losses.append([step.step() or step.loss() for _ in range(4)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_reduce_overhead_runs(make_module_case):
    case = make_module_case("py:tiny_gpt:build", device="cuda", compile="reduce-overhead")
    with prepare(case) as step:
        for _ in range(4):
            step.step()
        assert math.isfinite(step.loss())


def test_a_live_module_is_measured_where_it_lies(tiny_gpt):
    module = tiny_gpt.build().cuda()
    before = {name: each.clone() for name, each in module.state_dict().items()}
    batch = torch.zeros(2, 16, device="cuda").long()
    taken = given((module, batch, tiny_gpt.scored))
    case = live_case(taken, "train_step")
    with LiveWorkers(taken) as workers:
        assert workers.check(case) == Checked()
        found = workers.measure(case, Protocol(warmup_steps=2, min_steps=3, max_steps=3))
    assert (found.status, case.device) == ("ok", "cuda")
    assert {each.phase for each in found.phases} == {"forward", "backward", "optimizer"}
    assert all(torch.equal(before[name], each) for name, each in module.state_dict().items())
