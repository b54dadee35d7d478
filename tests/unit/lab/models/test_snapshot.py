"""What a step may change is put back bit for bit."""

import copy
import gc
import random
import weakref

import numpy
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from peakward.lab.models.snapshot import Snapshot, restored


class Net(nn.Module):
    """Tied weights, a buffer that is not saved, a frozen parameter, dropout, batch statistics."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(8, 8, bias=False)
        self.last.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(8), requires_grad=False)
        self.register_buffer("seen", torch.zeros(3), persistent=False)

    def forward(self, x):
        self.seen += 1
        return self.last(self.drop(self.norm(self.first(x)))) * self.scale


OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "sgd-momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam-tensor-lr": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.1)),
}


@pytest.fixture(params=OPTIMIZERS)
def net_and_optimizer(request):
    torch.manual_seed(1)
    net = Net()
    return net, OPTIMIZERS[request.param](net.parameters())


def train(net, optimizer, set_to_none=True):
    optimizer.zero_grad(set_to_none=set_to_none)
    net(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()


def state(net, optimizer):
    """Everything that should be restored, by value and by identity."""
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    return {
        "content": {name: each.detach().clone() for name, each in tensors.items()},
        "identity": {name: id(each) for name, each in tensors.items()},
        "gradients": {
            name: None if each.grad is None else each.grad.clone() for name, each in tensors.items()
        },
        "modes": [each.training for each in net.modules()],
        "needs_grad": [each.requires_grad for each in net.parameters()],
        "tied": net.last.weight is net.first.weight,
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "held": [[id(each) for each in group["params"]] for group in optimizer.param_groups],
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
    }


def assert_same(a, b, path=""):
    assert type(a) is type(b), path
    if isinstance(a, torch.Tensor):
        assert torch.equal(
            a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)
        ), path
    elif isinstance(a, numpy.ndarray):
        assert numpy.array_equal(a, b), path
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}/{i}")
    else:
        assert a == b, path


def disturb(net, optimizer):
    """More than a training step would."""
    train(net, optimizer)
    net.eval()
    net.scale.requires_grad_(True)
    optimizer.param_groups[0]["lr"] = 7.0
    random.random()
    numpy.random.rand()
    net.first.weight = nn.Parameter(torch.zeros(8, 8))
    net.seen = torch.full((3,), 9.0)
    net.register_buffer("extra", torch.zeros(1))


@pytest.mark.parametrize("n_before", [0, 2])
def test_all_is_as_before(net_and_optimizer, n_before):
    net, optimizer = net_and_optimizer
    for _ in range(n_before):
        train(net, optimizer)
    net.drop.eval()
    before = state(net, optimizer)
    with restored(net, optimizer):
        disturb(net, optimizer)
        assert not torch.equal(before["content"]["first.weight"], net.last.weight)
    assert_same(before, state(net, optimizer))


SCHEDULERS = {
    "steps": lambda by: lr_scheduler.StepLR(by, 2),
    "milestones": lambda by: lr_scheduler.MultiStepLR(by, [1, 3]),
    "cosine": lambda by: lr_scheduler.CosineAnnealingWarmRestarts(by, 3),
    "plateau": lambda by: lr_scheduler.ReduceLROnPlateau(by, patience=0),
    "one cycle": lambda by: lr_scheduler.OneCycleLR(by, 0.5, total_steps=40),
    "a chain": lambda by: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(by, total_iters=2), lr_scheduler.ExponentialLR(by, 0.5)]
    ),
    "one after another": lambda by: lr_scheduler.SequentialLR(
        by,
        [lr_scheduler.LinearLR(by, total_iters=2), lr_scheduler.CosineAnnealingLR(by, 9)],
        milestones=[2],
    ),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_rates_go_on_where_a_scheduler_was(kind):
    def rates(n_between):
        """The rates of twelve steps, with so many others behind the third that are put back."""
        parameter = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
        scheduler, found = SCHEDULERS[kind](optimizer), []
        measured = (1.0,) if kind == "plateau" else ()

        def step():
            optimizer.step()
            scheduler.step(*measured)
            found.append(optimizer.param_groups[0]["lr"])

        for _ in range(3):
            step()
        before = copy.deepcopy(scheduler.state_dict())
        with restored(None, optimizer, [scheduler]):
            for _ in range(n_between):
                step()
        assert_same(scheduler.state_dict(), before)
        del found[3:]
        for _ in range(9):
            step()
        return found

    assert rates(5) == rates(0)
    assert len(set(rates(0))) > 1


def test_also_when_the_step_raises(net_and_optimizer):
    net, optimizer = net_and_optimizer
    train(net, optimizer)
    before = state(net, optimizer)
    with pytest.raises(ValueError, match="halfway"), restored(net, optimizer):
        disturb(net, optimizer)
        raise ValueError("halfway")
    assert_same(before, state(net, optimizer))


def test_what_a_scripted_part_trains_is_given_back():
    net = nn.Sequential(
        torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU())), nn.BatchNorm1d(8)
    )
    optimizer = torch.optim.AdamW(net.parameters())
    before = {name: each.clone() for name, each in net.state_dict().items()}
    with restored(net, optimizer):
        net(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        net.eval()
        assert not torch.equal(before["0.0.weight"], net.state_dict()["0.0.weight"])
    assert all(torch.equal(each, before[name]) for name, each in net.state_dict().items())
    assert all(each.training for each in net.modules())
    assert optimizer.state == {}


def test_training_goes_on_as_if_nothing_had_been(net_and_optimizer):
    net, optimizer = net_and_optimizer
    train(net, optimizer)
    twin = copy.deepcopy((net, optimizer))
    drawn = torch.get_rng_state()
    with restored(net, optimizer):
        for _ in range(3):
            train(net, optimizer)
    train(net, optimizer)
    torch.set_rng_state(drawn)
    train(*twin)
    assert_same(dict(net.state_dict()), dict(twin[0].state_dict()))


def test_nan_and_negative_zero_survive():
    net = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[float("nan"), -0.0]]))
    before = net.weight.detach().clone()
    with restored(net, None), torch.no_grad():
        net.weight.zero_()
    assert_same(before, net.weight.detach())


def test_data_exchanged_for_another_type_comes_back():
    net = nn.Linear(4, 4)
    before = {name: each.detach().clone() for name, each in net.named_parameters()}
    with restored(net, None):
        net.bfloat16()
    assert_same(before, {name: each.detach() for name, each in net.named_parameters()})


def test_a_gradient_that_is_kept_keeps_its_identity():
    net = nn.Linear(4, 4)
    net(torch.ones(1, 4)).sum().backward()
    gradient, before = net.weight.grad, net.weight.grad.clone()
    with restored(net, None):
        net(torch.ones(1, 4)).sum().backward()
        assert not torch.equal(before, gradient)
    assert net.weight.grad is gradient
    assert_same(before, gradient)


def test_no_gradient_is_kept_alive_for_the_sake_of_the_snapshot():
    net = nn.Linear(4, 4)
    net(torch.ones(1, 4)).sum().backward()
    alive = weakref.ref(net.weight.grad)
    with restored(net, None):
        net.zero_grad(set_to_none=True)
        gc.collect()
        assert alive() is None
    assert net.weight.grad is not None


def test_an_optimizer_of_parameters_that_no_model_holds():
    loose = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([loose], lr=1.0, momentum=0.5)
    with restored(None, optimizer):
        loose.sum().backward()
        optimizer.step()
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert torch.equal(loose, torch.ones(3))
    assert loose.grad is None
    assert len(optimizer.param_groups) == 1
    assert not optimizer.state


def test_only_random_states_without_model_and_optimizer():
    drawn = torch.get_rng_state()
    with restored(None, None):
        torch.rand(5)
    assert torch.equal(drawn, torch.get_rng_state())


def test_one_snapshot_is_put_back_again_and_again(net_and_optimizer):
    """On a CPU a copy that is handed out would be the one that is kept, and a step would train it."""
    net, optimizer = net_and_optimizer
    train(net, optimizer)
    before = state(net, optimizer)
    held = Snapshot(net, optimizer)
    for disturbed in (disturb, train, train, disturb):
        with held.kept():
            optimizer.zero_grad(set_to_none=True)
            disturbed(net, optimizer)
        assert_same(before, state(net, optimizer))


def test_random_states_are_those_of_entering():
    held = Snapshot(None, None)
    torch.rand(3)
    drawn = torch.get_rng_state()
    with held.kept():
        torch.rand(3)
    assert torch.equal(drawn, torch.get_rng_state())
