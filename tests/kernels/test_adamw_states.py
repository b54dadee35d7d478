"""AdamW with moments in bf16 and in 8 bits: the kernels beside their references, and the optimiser."""

import math

import pytest
import torch

from peakward.kernels.ops.adamw import reference, stored
from peakward.kernels.ops.adamw.api import TritonAdamW

SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
kernel = pytest.importorskip("peakward.kernels.ops.adamw.triton")


def moments(n, seed):
    """A parameter, its gradient and moments as training has them, in fp32; sizes over some decades."""
    generator = torch.Generator("cpu").manual_seed(seed)

    def drawn():
        return torch.randn(n, generator=generator, device="cpu")

    size = (drawn() * 2).exp() * 1e-3
    first = drawn() * size
    return [
        each.to(torch.get_default_device()) for each in (drawn(), drawn() * size, first, size**2)
    ]


def kept(states, first, second, n):
    """Both moments as they are stored; 8 bits with exponents."""
    if states == "bf16":
        return first.bfloat16(), second.bfloat16()
    bits = torch.full((n,), 0x8000)
    return tuple(
        stored.encode(each, bits, code)
        for each, code in ((first, stored.FIRST), (second, stored.SECOND))
    )


def widened(states, held):
    if states == "bf16":
        return [each.double() for each in held]
    return [
        stored.decode(*each, code).double()
        for each, code in zip(held, (stored.FIRST, stored.SECOND), strict=True)
    ]


def copied(held):
    return [
        tuple(part.clone() for part in each) if isinstance(each, tuple) else each.clone()
        for each in held
    ]


UPDATES = {
    "bf16": (reference.update_bf16, kernel.update_bf16),
    "8bit": (reference.update_8bit, kernel.update_8bit),
}


@pytest.mark.parametrize("states", UPDATES)
@pytest.mark.parametrize("n", [1, 255, 1000, 4096, 9000])
def test_a_step_is_that_of_fp64_and_its_moments_are_neighbours(device, states, n):
    parameter, gradient, first, second = moments(n, seed=n)
    held = kept(states, first, second, n)
    step = torch.tensor(7.0)
    exact = [parameter.double(), *widened(states, held)]
    before = exact[0].clone()
    reference.update(exact[0], gradient.double(), *exact[1:], step, **SETTINGS)
    shared = kernel.scales(step, lr=SETTINGS["lr"], betas=SETTINGS["betas"])
    random = {"seed": (3 << 40) + 5, "number": 2}
    mine = copied(held)
    kernel_parameter = parameter.clone()
    UPDATES[states][1](kernel_parameter, gradient, *mine, shared, step, **random, **SETTINGS)
    # A few roundings of the step, and one of the parameter.
    bound = 2.0**-21 * ((exact[0] - before).abs() + exact[0].abs())
    assert ((kernel_parameter.double() - exact[0]).abs() <= bound).all()
    for new, old in zip(widened(states, mine), exact[1:], strict=True):
        # At most a whole distance of the grid, that of the largest element of a block where it is in 8 bits.
        relative = 2.0**-7 if states == "bf16" else 2.0**-3
        floor = 0.0 if states == "bf16" else float(old.abs().max()) * 2.0**-16
        assert ((new - old).abs() <= relative * 1.0001 * old.abs() + floor).all()
    # The reference rounds by the same bits: only an element whose fp32 sum differs may go the other way.
    theirs, reference_parameter = copied(held), parameter.clone()
    UPDATES[states][0](reference_parameter, gradient, *theirs, step, **random, **SETTINGS)
    for new, other in zip(widened(states, mine), widened(states, theirs), strict=True):
        assert (new != other).sum() <= max(1, n // 500)


def test_a_nan_gradient_reaches_the_parameter(device):
    for states, (_, update) in UPDATES.items():
        parameter, gradient, first, second = moments(1000, seed=0)
        held, step = kept(states, first, second, 1000), torch.tensor(1.0)
        gradient[3] = torch.nan
        shared = kernel.scales(step, lr=1e-3, betas=(0.9, 0.999))
        update(parameter, gradient, *held, shared, step, seed=0, number=0, **SETTINGS)
        assert parameter.isnan().nonzero().flatten().tolist() == [3]
        assert all(each[3].isnan() for each in widened(states, held))


@pytest.mark.parametrize("states", UPDATES)
def test_rounding_has_no_bias_over_steps_and_elements(device, states):
    """Moments that the step leaves between two values of the grid: a mean over 32,768 of them.

    The bound is five standard errors of it; rounding to nearest is off by tens of them.
    """
    n = 1 << 15
    parameter, gradient = torch.zeros(n), torch.full((n,), 1.3)
    first, second = torch.ones(n), torch.ones(n)
    held = kept(states, first, second, n)
    step = torch.tensor(3.0)
    shared = kernel.scales(step, lr=1e-3, betas=(0.9, 0.999))
    UPDATES[states][1](parameter, gradient, *held, shared, step, seed=1, number=0, **SETTINGS)
    for new, exact in zip(widened(states, held), (0.9 + 0.13, 0.999 + 0.00169), strict=True):
        grid = new.unique()
        assert len(grid) == 2
        assert grid[0] < exact < grid[1]
        distance = float(grid[1] - grid[0])
        up = (exact - float(grid[0])) / distance
        error = distance * math.sqrt(up * (1 - up) / n)
        assert abs(float(new.mean()) - exact) <= 5 * error
        nearest = min(grid.tolist(), key=lambda each: abs(each - exact))
        assert abs(nearest - exact) > 10 * error


def trained(states, n_steps, *, parameters=None, state=None, seed=3):
    """An optimiser over two parameters in two groups after steps from 1, or from a stored state's on."""
    generator = torch.Generator("cpu").manual_seed(0)
    made = [torch.randn(n, generator=generator, device="cpu") for n in (300, 1500)]
    device = torch.get_default_device()
    chosen = [torch.nn.Parameter(each.to(device)) for each in parameters or made]
    groups = [{"params": chosen[:1]}, {"params": chosen[1:], "weight_decay": 0.0}]
    optimizer = TritonAdamW(groups, lr=1e-2, states=states, seed=seed)
    first = 0
    if state is not None:
        optimizer.load_state_dict(state)
        first = int(next(iter(optimizer.state.values()))["step"])
    for count in range(first, first + n_steps):
        for each in chosen:
            each.grad = (torch.linspace(0, 9, each.numel()) + count).sin()
        optimizer.step()
    return optimizer, [each.detach().clone() for each in chosen]


def differing(mine, theirs):
    return sum(int((a != b).sum()) for a, b in zip(mine, theirs, strict=True))


def held_by(optimizer):
    """All tensors of an optimizer's state but the counts."""
    states = optimizer.state.values()
    return [each for state in states for name, each in state.items() if name != "step"]


@pytest.mark.parametrize("states", UPDATES)
def test_goes_on_bit_for_bit_from_a_stored_state(device, states, tmp_path):
    before, halfway = trained(states, 1)
    torch.save(before.state_dict(), tmp_path / "state")
    through, straight = trained(states, 2)
    kept = torch.load(tmp_path / "state", map_location="cpu")
    # The seed is the stored one, not the one that it is made with.
    again, resumed = trained(states, 1, parameters=halfway, state=kept, seed=99)
    assert not differing(resumed, straight)
    assert not differing(held_by(again), held_by(through))
    kind = torch.bfloat16 if states == "bf16" else torch.uint8
    assert {each.dtype for each in held_by(again)} == {kind}
    for group in kept["param_groups"]:
        group["seed"] = 4
    other, _ = trained(states, 1, parameters=halfway, state=kept)
    assert differing(held_by(other), held_by(through)) > 100


@pytest.mark.parametrize("states", UPDATES)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, TritonAdamW])
def test_takes_the_state_of_fp32_moments(device, states, kind):
    full, halfway = trained("as parameters", 3)
    state = full.state_dict()
    if kind is torch.optim.AdamW:
        groups = [{"params": [torch.nn.Parameter(each)]} for each in halfway]
        theirs = torch.optim.AdamW(groups, lr=1e-2)
        theirs.load_state_dict(state)
        state = theirs.state_dict()
    optimizer, _ = trained(states, 0, parameters=halfway, state=state)
    for mine, full_state in zip(optimizer.state.values(), full.state.values(), strict=True):
        assert int(mine["step"]) == 3
        for name, code in (("exp_avg", stored.FIRST), ("exp_avg_sq", stored.SECOND)):
            exact = full_state[name]
            if states == "bf16":
                got, bound = mine[name].float(), 2.0**-8
            else:
                got = stored.decode(mine[f"{name}_codes"], mine[f"{name}_exponents"], code)
                bound = 2.0**-4
            assert ((got - exact).abs() <= bound * exact.abs() + 2.0**-17 * exact.abs().max()).all()


def test_codes_are_no_state_of_another_adamw(device):
    state = trained("8bit", 1)[0].state_dict()
    parameters = [torch.nn.Parameter(torch.zeros(n)) for n in (300, 1500)]
    theirs = torch.optim.AdamW([{"params": [each]} for each in parameters])
    theirs.load_state_dict(state)
    for each in parameters:
        each.grad = torch.ones_like(each)
    with pytest.raises(KeyError, match="exp_avg"):
        theirs.step()
    back, _ = trained("as parameters", 0, state=state)
    assert all(each["exp_avg"].dtype == torch.float32 for each in back.state.values())


@pytest.mark.parametrize("states", UPDATES)
def test_takes_the_bytes_that_it_says(device, states):
    (state, *_) = trained(states, 1)[0].state.values()
    n_bytes = sum(each.nbytes for name, each in state.items() if name != "step")
    assert n_bytes == {"bf16": 4 * 300, "8bit": 2 * (300 + 2)}[states]


@pytest.mark.parametrize("states", UPDATES)
def test_trains_as_fp32_moments_do(device, states):
    """The way is that of fp32 moments within a share of its length."""
    _, exact = trained("as parameters", 4)
    _, mine = trained(states, 4)
    travelled = 4 * 1e-2
    for each, other in zip(mine, exact, strict=True):
        assert float((each - other).abs().max()) <= {"bf16": 0.02, "8bit": 0.3}[states] * travelled


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ({"states": "fp8"}, "expected states .*, got 'fp8'"),
        ({"states": "bf16", "seed": -1}, "expected a seed from 0 .*, got -1"),
        (
            {"states": "8bit", "dtype": torch.float16},
            "float32 for states in 8bit, got torch.float16",
        ),
        (
            {"states": "bf16", "group": {"states": "8bit"}},
            "expected states of the optimiser, 'bf16'",
        ),
        ({"states": "bf16", "group": {"seed": 1}}, "expected seed of the optimiser, 0, .* got 1"),
    ],
)
def test_refuses(device, given, got):
    wanted = dict(given)
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=wanted.pop("dtype", torch.float32)))
    group = {"params": [parameter], **wanted.pop("group", {})}
    with pytest.raises(ValueError, match=got):
        TritonAdamW([group], **wanted)
