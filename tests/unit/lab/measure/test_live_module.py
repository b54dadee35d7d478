"""A live module under levers, and as it was afterwards."""

import copy
import random
import threading

import msgspec
import pytest
import torch

from peakward.lab.levers import fp8_layers
from peakward.lab.measure.live_module import SHARED, LiveWorkers, live_case
from peakward.lab.measure.messages import Checked
from peakward.lab.models.given_module import given
from peakward.levers.catalogue import lever, pull
from peakward.records.errors import PeakwardError
from peakward.records.lever import Claim
from peakward.records.measurement import Protocol

QUICK = Protocol(warmup_steps=1, min_steps=2, max_steps=2, phases=False)


@pytest.fixture
def live(tiny_gpt):
    torch.manual_seed(0)
    return given((tiny_gpt.build(), torch.zeros(2, 16).long(), tiny_gpt.scored))


def state(module):
    """All of a module that a lever could have touched, and of torch's settings and random states."""
    return (
        {name: each.clone() for name, each in module.state_dict().items()},
        {
            name: None if each.grad is None else each.grad.clone()
            for name, each in module.named_parameters()
        },
        [dict(vars(each)) for each in module.modules()],
        [
            (
                each.training,
                dict(each._forward_hooks),
                dict(each._backward_hooks),
                each.forward.__func__,
            )
            for each in module.modules()
        ],
        [each.requires_grad for each in module.parameters()],
        (
            torch.get_float32_matmul_precision(),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.get_default_dtype(),
        ),
        torch.get_rng_state(),
        random.getstate(),
    )


def same(before, after):
    flat_before, flat_after = (torch.utils._pytree.tree_leaves(each) for each in (before, after))
    assert len(flat_before) == len(flat_after)
    for mine, theirs in zip(flat_before, flat_after, strict=True):
        equal = torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs
        assert equal, (mine, theirs)


@pytest.mark.parametrize(
    ("names", "declared", "training"),
    [
        (("bf16",), "approximate", True),
        (("bf16-mixed",), "approximate", False),
        (("fused-optimizer", "checkpointing"), "reordered", True),
        pytest.param(
            ("fused-norm",),
            "reordered",
            False,
            marks=[
                pytest.mark.skipif(torch.cuda.is_available(), reason="needs the interpreter"),
                pytest.mark.full,  # test_fused_norms takes them back too; an interpreted step is 1 s.
            ],
        ),
    ],
)
def test_the_user_s_module_is_never_left_altered(names, declared, training, live):
    module = live.module
    module.train(training)
    module.blocks[0].requires_grad_(False)
    module.head.weight.grad = torch.ones_like(module.head.weight)
    module.register_forward_hook(lambda *_: None)
    before = state(module)
    case = base = live_case(live, "train_step")
    for name in names:
        case = pull(lever(name), case)
    with LiveWorkers(live) as workers:
        assert workers.check(case) == Checked()
        found = workers.measure(case, QUICK)
        turns = workers.turns((base, case), QUICK)
        (verdict,) = workers.numerics([Claim(base=base, candidate=case, declared=declared)])
    assert (found.status, turns.status) == ("ok", "ok")
    assert len(turns.turns) == 2
    assert verdict.verdict == "holds"
    assert SHARED in found.validity.reasons
    same(before, state(module))


def test_a_failure_is_a_status_and_leaves_the_module(live, monkeypatch):
    before = state(live.module)
    kind = type(live.module)
    case = live_case(live, "train_step")

    def fails(self, ids):
        raise RuntimeError("CUDA out of memory. Tried to allocate")

    with LiveWorkers(live) as workers:
        with monkeypatch.context() as broken:
            broken.setattr(kind, "forward", fails)
            assert workers.measure(case, QUICK).status == "oom"
            assert workers.turns((case, case), QUICK).failed == 0
            assert (
                workers.numerics([Claim(base=case, candidate=case, declared="exact")])[0].verdict
                == "not computed"
            )
        assert workers.measure(case, QUICK).status == "ok"
    same(before, state(live.module))


def test_a_call_is_timed_in_the_process_that_issues_the_module_s(live, monkeypatch):
    before = state(live.module)
    with LiveWorkers(live) as workers:
        monkeypatch.setattr(workers, "_argv", ("no such worker",))
        found = workers.rates("launches", "cpu")
    assert found.recorded_call_s > 0
    same(before, state(live.module))


def test_the_case_is_of_the_module_s_content(live):
    case = live_case(live, "forward")
    assert (case.source, case.workload.batch_size, case.workload.seq_len) == ("live:GPT", 2, 16)
    assert live_case(live, "forward") == case
    other = copy.deepcopy(live.module)
    with torch.no_grad():
        other.head.weight[0, 0] += 1
    changed = live_case(given((other, live.args, live.loss)), "forward")
    assert changed == msgspec.structs.replace(case, fingerprint=changed.fingerprint) != case


def test_the_case_is_of_the_code_of_every_part(live, tiny_gpt, monkeypatch):
    before = live_case(live, "forward")

    class Block(tiny_gpt.Block):
        """Another one."""

    live.module.blocks[1].__class__ = Block
    assert live_case(live, "forward").fingerprint != before.fingerprint


def test_wrong_places_and_batches_are_refused(tiny_gpt):
    ids = torch.zeros(2, 16).long()
    with pytest.raises(
        PeakwardError, match=r"expected a batch on the module's device cpu, got .* on meta"
    ):
        live_case(given((tiny_gpt.build(), ids.to("meta"), tiny_gpt.scored)), "forward")
    model = tiny_gpt.build()
    model.head.to("meta")
    with pytest.raises(
        PeakwardError, match="expected a module on one device, got one on cpu, meta"
    ):
        live_case(given((model, ids, tiny_gpt.scored)), "forward")
    with pytest.raises(PeakwardError, match="expected a step on cpu or cuda, got one on meta"):
        live_case(given((tiny_gpt.on_meta(), ids.to("meta"))), "forward")
    with pytest.raises(
        PeakwardError, match=r"whose first tensor is \(batch_size, seq_len, …\), got \(3,\)"
    ):
        live_case(given((tiny_gpt.build(), torch.zeros(3).long())), "forward")


def test_a_module_that_cannot_be_copied_says_so(live):
    live.module.lock = threading.Lock()
    case = live_case(live, "forward")
    with LiveWorkers(live) as workers:
        wrong = workers.check(case)
    assert wrong.status == "invalid"
    assert wrong.reason.startswith("expected a module that copy.deepcopy can copy")


def test_its_operators_are_captured_from_a_copy(live):
    before = state(live.module)
    case = live_case(live, "train_step")
    with LiveWorkers(live) as workers:
        plain = workers.capture(case)
        recomputed = workers.capture(pull(lever("checkpointing"), case))
        compiled = workers.capture(pull(lever("compile"), case))
    assert plain.n_parameters == sum(each.numel() for each in live.module.parameters())
    assert len(recomputed.graph.operators) > len(plain.graph.operators)
    assert compiled.compiled is not None and plain.compiled is None
    same(before, state(live.module))


def test_the_layers_in_fp8_stand_in_the_measurement(live, monkeypatch):
    won = fp8_layers.Times(plain_s=2e-3, fp8_s=1e-3)
    monkeypatch.setattr(fp8_layers, "timed", lambda _shape, _place: won)
    before = state(live.module)
    case = pull(lever("fp8"), live_case(live, "train_step"))
    with LiveWorkers(live) as workers:
        found = workers.measure(case, QUICK)
    assert (found.status, found.reason) == ("ok", None)
    assert [(each.n_taken, each.fp8_s) for each in found.linear.layers] == [(2, 1e-3)] * 4
    same(before, state(live.module))
