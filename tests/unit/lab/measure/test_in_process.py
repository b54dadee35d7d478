"""A live step measured where it is."""

import functools

import pytest
import torch
from torch import nn

from peakward.lab.measure.in_process import SHARED, UNKNOWN, fingerprint, measure_step
from peakward.records.case import StepCase
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Protocol

PROTOCOL = Protocol(warmup_steps=2, min_steps=6, max_steps=6, phases=False)


@pytest.fixture
def trained():
    """A net, its optimiser, and a step that trains it and gives its loss."""
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = net(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return net, optimizer, step


def test_a_step_is_measured_and_its_model_left_alone(trained):
    net, optimizer, step = trained
    before = {name: each.clone() for name, each in net.state_dict().items()}
    found = measure_step(
        step, name="mine", model=net, optimizer=optimizer, protocol=PROTOCOL, tokens_per_step=4.0
    )
    assert found.status == "ok"
    assert isinstance(found.case, StepCase)
    assert (found.case.name, found.case.device, found.case.tokens_per_step) == ("mine", "cpu", 4.0)
    assert len(found.runs[0].warmup_s) == 2
    assert found.summary.n == 6
    assert found.loss > 0
    assert found.n_parameters == 72
    assert found.memory.peak_allocated_bytes >= 0
    assert found.phases == ()
    assert SHARED in found.validity.reasons
    assert UNKNOWN not in found.validity.reasons
    assert all(torch.equal(each, net.state_dict()[name]) for name, each in before.items())
    assert not optimizer.state


def test_a_second_measurement_has_the_same_key(trained):
    net, optimizer, step = trained
    found = [
        measure_step(step, name="mine", model=net, optimizer=optimizer, protocol=PROTOCOL)
        for _ in range(2)
    ]
    assert found[0].case == found[1].case
    assert found[0].loss == found[1].loss
    assert found[0].id != found[1].id


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("no"), "crashed"), (MemoryError(), "oom"), (PeakwardError("no"), "invalid")],
)
def test_a_step_that_raises_is_a_status_and_the_model_is_put_back(trained, error, status):
    net, optimizer, step = trained
    before = net.weight.clone()

    def fail():
        step()
        raise error

    found = measure_step(fail, name="mine", model=net, optimizer=optimizer, protocol=PROTOCOL)
    assert found.status == status
    assert found.reason
    assert torch.equal(before, net.weight)


def test_ctrl_c_is_the_user_s_and_the_model_is_put_back(trained):
    net, optimizer, step = trained
    before = net.weight.clone()

    def interrupted():
        step()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_step(interrupted, name="mine", model=net, optimizer=optimizer, protocol=PROTOCOL)
    assert torch.equal(before, net.weight)


def test_a_loss_that_is_not_finite_is_invalid():
    found = measure_step(lambda: torch.tensor(float("nan")), name="nan", protocol=PROTOCOL)
    assert found.status == "invalid"
    assert found.reason == "expected a finite loss, got nan after 8 steps"


@pytest.mark.parametrize(
    ("result", "loss"), [(0.25, 0.25), (torch.ones(1), 1.0), (torch.ones(2), None), (None, None)]
)
def test_what_counts_as_a_loss(result, loss):
    assert measure_step(lambda: result, name="any", protocol=PROTOCOL).loss == loss


def test_without_a_model_the_record_says_what_is_not_restored():
    found = measure_step(lambda: None, name="any", protocol=PROTOCOL)
    assert {SHARED, UNKNOWN} <= set(found.validity.reasons)
    assert found.n_parameters is None


def test_what_cannot_be_done_in_process_is_refused():
    with pytest.raises(PeakwardError, match="without fresh_process"):
        measure_step(lambda: None, name="any", protocol=Protocol(fresh_process=True))
    with pytest.raises(PeakwardError, match="on cpu or cuda, got one on meta"):
        measure_step(lambda: None, name="any", device="meta")


def step():
    return 1


def other_step():
    return 2


class Callable:
    def __call__(self):
        return 3


def test_it_is_stable_and_short():
    assert fingerprint(step, None) == fingerprint(step, None)
    assert len(fingerprint(step, None)) == 16


def test_it_depends_on_the_source():
    steps = [step, other_step, lambda: 4, Callable(), functools.partial(step), print]
    assert len({fingerprint(each, None) for each in steps}) == len(steps)


def test_it_depends_on_every_parameter():
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    names = {fingerprint(step, None), fingerprint(step, net)}
    with torch.no_grad():
        net.weight[1, 2] += 1e-6
        names.add(fingerprint(step, net))
        net.bias.copy_(net.bias.flip(0))
        names.add(fingerprint(step, net))
        names.add(fingerprint(step, net.bfloat16()))
    assert len(names) == 5


def test_strides_and_emptiness_do_not_matter():
    class Holder(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = nn.Parameter(weight)

    plain = torch.arange(6.0).view(2, 3)
    assert fingerprint(step, Holder(plain)) == fingerprint(step, Holder(plain.t().contiguous().t()))
    assert fingerprint(step, Holder(torch.empty(0))) != fingerprint(step, None)
