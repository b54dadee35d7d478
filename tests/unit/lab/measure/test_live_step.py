"""A live step under levers, and all that is the user's as it was afterwards."""

import copy
import random

import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from peakward.lab.measure.in_process import SHARED, UNKNOWN
from peakward.lab.measure.live_step import StepWorkers, live_case
from peakward.lab.models.torch_settings import kept_settings, matmul_precision
from peakward.levers.catalogue import lever, pull
from peakward.records.errors import PeakwardError
from peakward.records.lever import Claim
from peakward.records.measurement import Protocol
from peakward.stats.summary import typical_s

QUICK = Protocol(warmup_steps=1, min_steps=2, max_steps=2, phases=False)


def state(given):
    """Of model, optimizer, loader, random states and torch's settings."""
    return (
        {name: each.clone() for name, each in given.model.state_dict().items()},
        [None if each.grad is None else each.grad.clone() for each in given.model.parameters()],
        [(type(each), each.training, sorted(vars(each))) for each in given.model.modules()],
        [each.requires_grad for each in given.model.parameters()],
        [len(each._forward_hooks | each._forward_pre_hooks) for each in given.model.modules()],
        dict(given.optimizer.defaults),
        [len(each._post_accumulate_grad_hooks or ()) for each in given.model.parameters()],
        copy.deepcopy(given.optimizer.state_dict()),
        None if given.loader is None else given.loader.generator.get_state(),
        torch.get_rng_state(),
        random.getstate(),
        torch.get_float32_matmul_precision(),
        torch.is_grad_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.get_default_dtype(),
    )


def same(before, after):
    for mine, theirs in zip(tree_leaves(before), tree_leaves(after), strict=True):
        tensors = isinstance(mine, torch.Tensor)
        assert torch.equal(mine, theirs) if tensors else mine == theirs


def fed(make_step, **parts):
    ids = torch.randint(50, (6, 16), generator=torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(4)
    return make_step(
        fed=True, loader=DataLoader(ids, batch_size=2, shuffle=True, generator=generator), **parts
    )


def test_whatever_is_asked_the_user_s_is_as_before(make_step, in_tmp):
    for given in (make_step(), fed(make_step)):
        given.step(torch.zeros(2, 16).long()) if given.loader else given.step()
        before = state(given)
        case = live_case(given, name="mine", tokens_per_step=32.0)
        candidate = pull(lever("sdpa-math"), case)
        with StepWorkers(given) as workers:
            seen = workers.check_step()
            found = workers.measure(case, QUICK)
            turns = workers.turns((case, candidate), QUICK)
            (verdict,) = workers.numerics(
                [Claim(base=case, candidate=candidate, declared="reordered")]
            )
            profiled = workers.profile(case, in_tmp / f"{case.fingerprint}.json.gz", n_steps=1)
        assert (found.status, turns.status, verdict.verdict) == ("ok", "ok", "holds")
        assert seen.attention.n == 2
        assert found.loss > 0
        assert found.n_parameters == sum(each.numel() for each in given.model.parameters())
        assert profiled.n_steps == 1
        assert (found.loader is None) == (given.loader is None)
        assert SHARED in found.validity.reasons
        assert UNKNOWN not in found.validity.reasons
        same(before, state(given))


@pytest.mark.parametrize(
    "name",
    [
        "bf16-mixed",
        "bf16",
        "fused-optimizer",
        "checkpointing",
        "workers-2",
        "sdpa",
        pytest.param("compile", marks=pytest.mark.full),
    ],
)
def test_levers_in_the_model_and_the_optimizer_are_taken_back(name, make_step):
    given = fed(make_step, sdpa=False)
    given.model.register_buffer("scale", torch.rand(3))
    next(given.model.parameters()).requires_grad_(False)
    given.step(torch.zeros(2, 16).long())
    before = state(given)
    seen = []
    given.model.blocks[0].register_forward_hook(
        lambda *_: seen.append(torch.is_autocast_enabled("cpu"))
    )
    before = state(given)
    case = live_case(given, name="mine", tokens_per_step=None)
    pulled = lever(name)
    candidate = pull(pulled, case)
    with StepWorkers(given) as workers:
        assert workers.turns((case, candidate, case), QUICK).status == "ok"
        (verdict,) = workers.numerics(
            [Claim(base=case, candidate=candidate, declared=pulled.numerics)]
        )
        assert verdict.verdict == "holds"
    same(before, state(given))
    assert any(seen) == (name == "bf16-mixed")


def test_the_waits_of_the_timed_steps_are_kept(make_step):
    given = fed(make_step)
    case = live_case(given, name="mine", tokens_per_step=None)
    with StepWorkers(given) as workers:
        waits = workers.measure(case, QUICK).loader
    assert len(waits.wait_s) == 2
    assert waits.first_wait_s > 0
    assert waits.idle_s is None


def test_a_step_that_is_fed_is_judged_by_its_mean(make_step):
    """Its workers hand over batches in bursts, the first of which were made before it began."""
    given = fed(make_step)
    case = live_case(given, name="mine", tokens_per_step=None)
    with StepWorkers(given) as workers:
        plain = workers.measure(case, QUICK)
        queued = workers.measure(pull(lever("workers-2"), case), QUICK)
    assert [len(plain.runs[0].warmup_s), len(plain.runs[0].steps_s)] == [1, 2]
    assert [len(queued.runs[0].warmup_s), len(queued.runs[0].steps_s)] == [8, 8]
    assert typical_s(queued).estimate == pytest.approx(queued.summary.mean_s)
    with StepWorkers(make_step()) as workers:
        alone = workers.measure(live_case(make_step(), name="mine", tokens_per_step=None), QUICK)
    assert typical_s(alone) == alone.summary.median_s


def test_a_failure_is_a_status(make_step):
    given = make_step()
    case = live_case(given, name="mine", tokens_per_step=None)
    before = state(given)

    def fails(*_):
        raise RuntimeError("CUDA out of memory. Tried to allocate")

    with StepWorkers(given) as workers:
        given.model.blocks[1].forward = fails
        assert workers.measure(case, QUICK).status == "oom"
        assert workers.turns((case, case), QUICK).failed == 0
        assert (
            workers.numerics([Claim(base=case, candidate=case, declared="exact")])[0].verdict
            == "not computed"
        )
        del given.model.blocks[1].forward
        assert workers.measure(case, QUICK).status == "ok"
    same(before, state(given))


def test_no_two_cases_are_one(make_step):
    """What a function holds cannot be told: a stored result must not pass for another's."""
    given = make_step()
    one, other = (live_case(given, name="mine", tokens_per_step=None) for _ in range(2))
    assert one != other
    assert (one.name, one.device) == (other.name, other.device) == ("mine", "cpu")


def test_without_a_model_the_record_says_what_is_not_restored(make_step):
    given = make_step(model=None)
    case = live_case(given, name="mine", tokens_per_step=None)
    with StepWorkers(given) as workers:
        assert UNKNOWN in workers.measure(case, QUICK).validity.reasons


def settings():
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cudnn.benchmark,
    )


def test_all_are_put_back_though_the_block_raises():
    before = settings()
    with pytest.raises(ValueError, match="then"), kept_settings():
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cuda.enable_math_sdp(False)
        torch.backends.cudnn.benchmark = True
        assert all(mine != theirs for mine, theirs in zip(settings(), before, strict=True))
        raise ValueError("then")
    assert settings() == before


def test_a_precision_that_torch_cannot_tell_is_refused(monkeypatch):
    def mixed():
        raise RuntimeError("you have used mix of the legacy and new APIs")

    assert matmul_precision() == "highest"
    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    with pytest.raises(PeakwardError, match="got it set by torch"), kept_settings():
        raise AssertionError("not reached")
