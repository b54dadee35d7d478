"""Levers at work in a live model are held to its own numbers on the user's batch."""

from contextlib import contextmanager
from functools import partial

import msgspec
import pytest
import torch
import torch.nn.functional as F

from peakward.lab.levers import fp8_layers
from peakward.lab.levers.in_place import Applied, Live
from peakward.lab.levers.whole_step import WholeStep
from peakward.lab.models.snapshot import restored
from peakward.lab.numerics import certificate
from peakward.lab.numerics.certificate import Certifier
from peakward.records.case import AS_WRITTEN
from tiers import in_full

IDS = torch.arange(64).view(4, 16) % 50


def scored(logits, ids):
    return F.cross_entropy(logits.flatten(0, 1).float(), ids.roll(-1, 1).flatten())


def plain(_live, step):
    return step()


@pytest.fixture
def certified(tiny_gpt):
    """certified(wrong=, loss=, model=, **changes): the verdict on a configuration; `wrong` is called with
    the live model and the step in the place of the step."""

    def judge(wrong=plain, loss=scored, model=None, declared="reordered", **changes):
        torch.manual_seed(0)
        model = model or tiny_gpt.GPT()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        live = Live(model=model, optimizer=optimizer)

        @contextmanager
        def arm(configuration=AS_WRITTEN, around=plain):
            applied = Applied(live, configuration)
            step = WholeStep(live, loss)
            try:
                with restored(model, optimizer):
                    yield lambda: around(live, partial(step, IDS))
            finally:
                applied.undo()

        certifier = Certifier(live, loss, IDS, arm)
        configuration = msgspec.structs.replace(AS_WRITTEN, **changes)
        return certifier.judged(
            partial(arm, configuration, wrong), configuration, AS_WRITTEN, declared
        )

    return judge


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpointing": "every-block"},
        {"attention": "sdpa-math", "optimizer": "adamw-fused"},
        {"precision": "bf16-mixed", "attention": "sdpa-math"},
        {"precision": "bf16", "optimizer": "adamw-fused"},
    ],
)
def test_levers_hold_by_loss_every_gradient_and_update(certified, tiny_gpt, changes):
    verdict = certified(**changes)
    assert (verdict.verdict, verdict.reason) == ("holds", None)
    names = [name for name, _ in tiny_gpt.GPT().named_parameters()]
    for quantity in ("gradients", "updates"):
        assert [e.parameter for e in verdict.errors if e.quantity == quantity] == names


def off(live, step, *, name, factor):
    """One gradient is wrong when the optimizer steps."""
    parameter = dict(live.model.named_parameters())[name]
    hook = parameter.register_hook(lambda gradient: gradient * factor)
    try:
        return step()
    finally:
        hook.remove()


@pytest.mark.parametrize(
    ("precision", "factor"), [("fp32", 1 + 2e-5), ("bf16-mixed", 1 + 6e-2), ("bf16", 1 + 6e-2)]
)
def test_a_gradient_that_is_slightly_wrong_is_named(certified, precision, factor):
    wrong = partial(off, name="blocks.1.ff.0.weight", factor=factor)
    verdict = certified(wrong, precision=precision)
    assert verdict.verdict == "violated"
    assert verdict.reason.startswith("gradients of blocks.1.ff.0.weight: error")


class Turned(torch.nn.Module):
    """Embeddings times complex numbers, taken for pairs of real ones."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(50, 32), torch.nn.Linear(32, 50)
        self.turns = torch.nn.Parameter(torch.polar(torch.ones(16), torch.linspace(0.1, 3.0, 16)))

    def forward(self, ids):
        pairs = torch.view_as_complex(self.embedding(ids).unflatten(-1, (16, 2)))
        return self.head(torch.view_as_real(pairs * self.turns).flatten(-2))


def imaginary_off(live, step):
    """The imaginary part alone of a gradient is wrong."""
    hook = live.model.turns.register_hook(lambda g: torch.complex(g.real, g.imag * (1 + 1e-3)))
    try:
        return step()
    finally:
        hook.remove()


def test_complex_parameters_are_held_to_both_of_their_parts(certified):
    right = certified(model=Turned())
    assert (right.verdict, right.reason) == ("holds", None)
    assert "turns" in [each.parameter for each in right.errors if each.quantity == "updates"]
    wrong = certified(imaginary_off, model=Turned())
    assert wrong.verdict == "violated"
    assert wrong.reason.startswith("gradients of turns: error")


class Rectified(torch.nn.Module):
    """Units that rounding turns on or off now and then, and with them much of a gradient."""

    in_halves = False

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(50, 32)
        self.first, self.second, self.head = (torch.nn.Linear(32, n) for n in (32, 32, 50))

    def forward(self, ids):
        x = F.relu(self.first(self.embedding(ids)))
        if self.in_halves:
            (a, b), (c, d) = x.chunk(2, -1), self.second.weight.chunk(2, 1)
            return self.head(F.relu(F.linear(a, c) + F.linear(b, d, self.second.bias)))
        return self.head(F.relu(self.second(x)))


def in_halves(live, step):
    """A sum in another order, which is no fault."""
    live.model.in_halves = True
    try:
        return step()
    finally:
        live.model.in_halves = False


def test_units_that_rounding_turns_are_no_fault(certified, monkeypatch):
    def n_refused():
        models = (Rectified(seed) for seed in range(12))
        verdicts = [certified(in_halves, model=each, precision="bf16-mixed") for each in models]
        return sum(each.verdict != "holds" for each in verdicts)

    assert n_refused() == 0
    monkeypatch.setattr(certificate, "N_NEIGHBOURS", 0)
    assert n_refused() > 0


@pytest.mark.parametrize(("name", "factor"), [("head.weight", 1 + 6e-2), ("second.weight", 1.5)])
def test_a_fault_behind_such_units_is_named(certified, name, factor):
    wrong = partial(off, name=name, factor=factor)
    for seed in range(4):
        model = Rectified(seed)
        before = [each.detach().clone() for each in model.parameters()]
        verdict = certified(wrong, model=model, precision="bf16-mixed")
        assert verdict.verdict == "violated"
        assert verdict.reason.startswith(f"gradients of {name}: error")
        after = zip(model.parameters(), before, strict=True)
        assert all(torch.equal(*each) for each in after), "models beside it were its parameters"


@pytest.mark.parametrize(("factor", "n_asked"), [(1.5, 8), (9, 2)])
def test_what_is_off_by_far_asks_few_models_beside(certified, monkeypatch, factor, n_asked):
    asked, beside = [], certificate.beside

    def counted(model, seed, *roundoff):
        asked.append(seed)
        return beside(model, seed, *roundoff)

    monkeypatch.setattr(certificate, "beside", counted)
    wrong = partial(off, name="second.weight", factor=factor)
    verdict = certified(wrong, model=Rectified(0), precision="bf16-mixed")
    assert verdict.verdict == "violated"
    assert len(asked) == n_asked


class Keyed(torch.nn.Module):
    """Attention whose keys have a bias, of which scores' differences know nothing."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(50, 32), torch.nn.Linear(32, 50)
        self.query, self.key = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

    def forward(self, ids):
        x = self.embedding(ids)
        return self.head((self.query(x) @ self.key(x).mT).softmax(-1) @ x)


@pytest.mark.parametrize(("factor", "expected"), [(5, "holds"), (30, "violated")])
def test_a_gradient_that_is_rounding_alone_is_held_to_its_order(
    certified, monkeypatch, factor, expected
):
    monkeypatch.setattr(certificate, "N_NEIGHBOURS", 0)
    wrong = partial(off, name="key.bias", factor=factor)
    assert certified(wrong, model=Keyed(), precision="bf16-mixed").verdict == expected


@pytest.fixture
def every_layer_wins(monkeypatch):
    won = fp8_layers.Times(plain_s=2e-3, fp8_s=1e-3)
    monkeypatch.setattr(fp8_layers, "timed", lambda _shape, _place: won)


@pytest.mark.parametrize("changes", [{}, *in_full([{"compile": "default"}])])
def test_fp8_holds_to_what_rounding_to_fp8_costs(certified, every_layer_wins, changes):
    verdict = certified(precision="fp8", declared="approximate", **changes)
    assert (verdict.verdict, verdict.reason) == ("holds", None)
    of_block = [each for each in verdict.errors if each.parameter == "blocks.0.ff.0.weight"]
    assert any(2.0**-8 < each.candidate_error < each.bound for each in of_block)


def test_a_gradient_that_is_wrong_beyond_fp8_is_named(certified, every_layer_wins):
    wrong = partial(off, name="blocks.1.ff.0.weight", factor=1.5)
    verdict = certified(wrong, precision="fp8", declared="approximate")
    assert verdict.verdict == "violated"
    assert verdict.reason.startswith("gradients of blocks.1.ff.0.weight: error")


def test_scales_of_windows_are_judged(certified, every_layer_wins, wrong_by_windows):
    assert certified(precision="fp8", declared="approximate").verdict == "violated"


def moved(live, step):
    loss = step()
    with torch.no_grad():
        live.model.head.weight.mul_(1 + 1e-5)
    return loss


def test_a_wrong_update_is_named(certified):
    verdict = certified(moved)
    assert verdict.verdict == "violated"
    assert verdict.reason.startswith("updates of head.weight: error")


def drops_more(live, step):
    """Dropout at five times its rate, which eval mode does not show."""
    held = [each for each in live.model.modules() if isinstance(each, torch.nn.Dropout)]
    for each in held:
        each.p *= 5
    try:
        return step()
    finally:
        for each in held:
            each.p /= 5


def test_dropout_is_compared_by_means_of_losses(certified, tiny_gpt):
    def squared(logits, _ids):
        """Of what is divided by 1 − p where it is not dropped, the mean grows with p."""
        return logits.square().mean()

    model = tiny_gpt.GPT()
    model.norm = torch.nn.Identity()
    torch.nn.init.normal_(model.blocks[1].out.weight, std=5.0)
    verdict = certified(drops_more, loss=squared, model=model)
    assert verdict.verdict == "violated"
    assert verdict.reason.startswith("with dropout: means of 8 losses differ by")


def test_without_a_run_in_fp64_the_models_own_runs_are_the_measure(certified):
    def only_fp32(logits, ids):
        assert logits.dtype == torch.float32
        return scored(logits, ids)

    verdict = certified(loss=only_fp32, checkpointing="every-block", attention="sdpa-math")
    assert verdict.verdict == "holds"
    assert "does not run in fp64 here: AssertionError" in verdict.reason
    wrong = partial(off, name="blocks.1.ff.0.weight", factor=1 + 2e-5)
    assert certified(wrong, loss=only_fp32).verdict == "violated"


def test_without_a_run_in_fp64_a_cast_errs_by_what_the_models_own_run_tells(certified):
    """Another order of sums in the cast is no error of it."""

    def only_narrow(logits, ids):
        assert logits.dtype != torch.float64
        return scored(logits, ids)

    reordered = {"precision": "bf16-mixed", "attention": "sdpa-math"}
    verdict = certified(loss=only_narrow, **reordered)
    assert (verdict.verdict, verdict.reason[:7]) == ("holds", "against")
    assert all(each.base_error > 0 for each in verdict.errors if each.quantity == "gradients")
    wrong = partial(off, name="blocks.1.ff.0.weight", factor=1.1)
    assert certified(wrong, loss=only_narrow, **reordered).verdict == "violated"


def test_a_model_that_gives_other_numbers_at_each_call_is_not_certified(certified, tiny_gpt):
    class Counting(tiny_gpt.GPT):
        calls = 0

        def forward(self, ids):
            Counting.calls += 1
            return super().forward(ids) * (1 + Counting.calls / 10)

    verdict = certified(model=Counting())
    assert verdict.verdict == "not computed"
    assert "losses that differ" in verdict.reason
