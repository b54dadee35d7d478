"""Runs with a planted fault: each is found at its operator, with its cause and a change that lets it pass."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import peakward as pw
from peakward.api.debugging import debug_case
from peakward.records.errors import PeakwardError

from .conftest import FAULT_AT, Within, debugged


class Scores(nn.Module):
    """Attention whose scores are computed in half precision and are not scaled."""

    def __init__(self, width, factor):
        super().__init__()
        self.project = nn.Linear(width, width)
        self.factor = factor

    def forward(self, x):
        q = (self.project(x) * self.factor).half()
        return ((q @ q.transpose(-2, -1)).softmax(-1) @ q).to(x.dtype) / self.factor


class Switched:
    """A scheduler that multiplies the rate from a step on."""

    def __init__(self, run, at, factor):
        def factor_of(n):
            return factor if n >= at else 1.0

        self.inner = torch.optim.lr_scheduler.LambdaLR(run.optimizer, factor_of)
        step = type(run).__call__

        class Stepped(type(run)):
            def __call__(this, ids):
                loss = step(this, ids)
                self.inner.step()
                return loss

        run.__class__ = Stepped


def test_an_overflow_of_half_precision_scores(run, batches):
    one = run()
    one.model.blocks[1] = Scores(16, 400.0)
    one.optimizer.add_param_group({"params": one.model.blocks[1].parameters()})
    with torch.no_grad():
        one.model.blocks[1].project.weight.mul_(4)
    found = debugged(one, batches())
    assert found.outcome == "found"
    assert found.fault.operator == "aten.bmm.default"
    assert (found.fault.phase, found.fault.module) == ("forward", "blocks.1")
    assert found.fault.output.dtype == "float16"
    assert found.fault.exact_magnitude > 65_504
    assert found.cause.kind == "overflow"
    assert "q @ q.transpose" in found.fault.source


class Squares(nn.Module):
    """The products of a projection with itself."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 16)

    def forward(self, x):
        q = self.project(x) * 1000
        return (q @ q.transpose(-2, -1)).softmax(-1) @ x


def test_a_model_of_half_precision_is_tried_in_fp32_and_left_as_it_was(run, batches):
    model = nn.Sequential(nn.Embedding(11, 16), Squares(), nn.Linear(16, 11)).half()
    one = run(model, optimizer=torch.optim.SGD)
    scores, calls = model[1], []
    scores.register_forward_hook(lambda *_: calls.append("hook"))
    inner = scores.forward

    def set_on_it(x):
        calls.append("forward")
        return inner(x)

    scores.forward = set_on_it
    found = debugged(one, batches(), n_steps=3)
    assert (found.fault.operator, found.fault.module) == ("aten.bmm.default", "1")
    (tried,) = found.trials
    assert (tried.fix, tried.target, tried.passes) == ("module in fp32", "1", True)
    assert scores.forward is set_on_it
    assert calls.count("hook") == calls.count("forward")


def test_a_change_that_a_step_does_not_take_is_told_and_ends_nothing(run, batches):
    one = run(optimizer=torch.optim.SGD)
    one.model.embedding.sparse = True
    one.model.blocks[0] = Within(one.model.blocks[0], lambda x: x / 0)
    found = debugged(one, batches(), n_steps=3)
    assert found.fault.operator == "aten.div.Tensor"
    (clipped,) = [each for each in found.trials if each.fix == "clip gradients"]
    assert not clipped.passes
    assert clipped.error.startswith("NotImplementedError")  # torch clips no sparse gradient.
    assert "the step raises NotImplementedError" in pw.markdown(found)


def test_a_logarithm_of_zero(run, batches):
    class OfZero(run):
        def loss(self, logits, ids):
            p = logits[:, :-1].softmax(-1)
            if self.model.steps == FAULT_AT:
                p = p * (p > p.mean())
            self.model.steps += 1
            picked = p.gather(-1, ids[:, 1:, None]).squeeze(-1)
            return -picked.log().mean()

    one = OfZero()
    one.model.register_buffer("steps", torch.zeros((), dtype=torch.long))
    found = debugged(one, batches())
    assert found.replayed_bitwise
    assert found.fault.step == FAULT_AT
    assert found.fault.operator == "aten.log.default"
    assert found.fault.inputs[0].n_zero > 0
    assert found.cause.kind == "logarithm of zero"
    assert ".log().mean()" in found.fault.source


@pytest.mark.parametrize(
    ("function", "given", "advice"),
    [
        (lambda x: (x - 2).sqrt(), "below 0", "x.clamp_min(0)"),
        (lambda x: (x.tanh() * 2).acos(), "outside -1 to 1", "x.clamp(-1, 1)"),
        (lambda x: (x - 5).log1p(), "below -1", "x.clamp_min(-1 + 1e-6)"),
        (lambda x: (x - 5).log(), "below 0", "x.clamp_min(1e-20)"),
        (lambda x: (x * 5).atanh(), "outside -1 to 1", "x.clamp(-1 + 1e-6, 1 - 1e-6)"),
    ],
)
def test_a_function_outside_its_domain(run, batches, function, given, advice):
    one = run()
    one.model.blocks[0] = Within(one.model.blocks[0], function)
    found = debugged(one, batches(), n_steps=3)
    assert found.cause.kind == "outside the domain"
    assert given in found.cause.sentence
    assert advice in found.cause.advice


def test_a_norm_of_no_variance_names_its_rows_and_passes_with_an_epsilon(run, batches):
    one = run()
    one.model.norm.eps = 0.0
    with torch.no_grad():
        one.model.embedding.weight[7] = 3.0
        for block in one.model.blocks:
            block.weight.zero_()
            block.bias.zero_()
    one.optimizer = torch.optim.SGD(one.model.head.parameters(), lr=1e-3)
    rare = [ids.clamp_max(6) for ids in itertools.islice(batches(), 25)]
    rare[FAULT_AT][2, 3] = 7
    found = debugged(one, rare)
    assert found.fault.step == FAULT_AT
    assert found.fault.operator == "aten.native_layer_norm.default"
    assert found.fault.module == "norm"
    assert found.cause.kind == "zero variance"
    assert found.with_batch_before
    assert (found.trials[0].fix, found.trials[0].passes) == ("epsilon of norm", True)
    assert one.model.norm.eps == 0.0, "a trial is taken back"


def test_an_overflow_in_the_backward_pass_of_a_norm_is_no_lack_of_variance(run, batches):
    class Scaled(run):
        def loss(self, logits, ids):
            return super().loss(logits.float(), ids) * 2**10

    one = Scaled(optimizer=torch.optim.SGD)
    with torch.no_grad():
        for each in (one.model.embedding.weight, *(block.weight for block in one.model.blocks)):
            each.mul_(1e-3)  # The norm multiplies gradients by one over the spread of its rows.
        for block in one.model.blocks:
            block.bias.zero_()
        one.model.head.weight.mul_(20)
    one.model.half()
    found = debugged(one, batches(), n_steps=3)
    assert found.fault.operator == "aten.native_layer_norm_backward.default"
    assert found.fault.exact_magnitude > 65_504
    assert found.cause.kind == "overflow"


def test_a_rate_that_leaps(run, batches):
    one = run()
    schedule = Switched(one, 21, 1e36)
    found = debugged(one, batches(), stateful=[schedule.inner])
    assert found.replayed_bitwise
    assert found.cause.kind == "learning rate"
    assert "leapt from 0.001 to 1e+33 at step 21" in found.cause.sentence
    assert (found.trials[0].fix, found.trials[0].passes) == ("usual learning rate", True)
    assert found.steps[-1].step == found.fault.step - 1


def test_activations_that_grow_until_a_type_ends(run, batches):
    class Gain(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return (x * self.gain).half().float()

    class Grows(run):
        def loss(self, logits, ids):
            return super().loss(logits, ids) - self.model.blocks[1].gain.square() / 2

    one = Grows()
    one.model.blocks[1] = Gain()
    one.optimizer = torch.optim.SGD(one.model.blocks[1].parameters(), lr=0.3)
    found = debugged(one, batches(), n_steps=200)
    assert found.fault.operator == "aten._to_copy.default"
    assert found.cause.kind == "growing activations"
    assert "blocks.1 (Gain) grew" in found.cause.sentence
    assert ("tenth of the learning rate", True) in [
        (each.fix, each.passes) for each in found.trials
    ]


def test_the_located_step_draws_what_the_failing_one_drew(run, batches):
    class Drops(run):
        def loss(self, logits, ids):
            kept = F.dropout(torch.ones(4), 0.5)
            return super().loss(logits, ids) - kept.sum().log()  # Infinite where all are dropped.

    found = debugged(Drops(), batches(), n_steps=200)
    assert (found.outcome, found.fault.operator) == ("found", "aten.log.default")


def test_a_bad_batch(run, batches):
    class Regression(run):
        def loss(self, logits, ids):
            return logits.mean()

        def __call__(self, x):
            self.optimizer.zero_grad()
            loss = self.model(x).square().mean()
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    one = Regression(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
    given = [torch.randn(8, 4) for _ in range(40)]
    given[FAULT_AT][5, 2] = math.nan
    found = debugged(one, given)
    assert (found.fault.phase, found.fault.step) == ("data", FAULT_AT)
    assert found.fault.operator == "batch 0"
    assert found.cause.kind == "bad batch"
    assert "holds 1 value that is not finite (batch 0)." in found.cause.sentence
    assert found.with_batch_before
    assert (found.trials[0].fix, found.trials[0].passes) == ("skip batch", True)
    last = debugged(one, given[: FAULT_AT + 1])
    assert last.cause.kind == "bad batch"
    assert not any(each.fix == "skip batch" or each.passes for each in last.trials)


def test_a_value_that_begins_in_the_optimizer(run, batches):
    one = run(eps=0.0)
    one.model.unused = nn.Parameter(torch.ones(3))
    one.optimizer.add_param_group({"params": [one.model.unused]})

    def loss(logits, ids):
        return type(one).loss(one, logits, ids) + 0 * one.model.unused.sum()

    one.loss = loss
    found = debugged(one, batches())
    assert found.fault.phase == "optimizer"
    assert found.fault.reached == "parameter unused"
    assert found.cause.kind == "optimizer state"
    assert (found.trials[0].fix, found.trials[0].passes) == ("epsilon of optimizer", True)
    assert one.optimizer.param_groups[0]["eps"] == 0.0


def test_a_value_that_begins_in_the_backward_pass_alone(run, batches):
    class Root(nn.Module):
        def forward(self, x):
            return x + (0 * x).square().sum(-1, keepdim=True).sqrt()

    one = run()
    one.model.blocks.append(Root())
    found = debugged(one, batches())
    assert (found.fault.phase, found.fault.module) == ("backward", "blocks.2")
    assert found.fault.derivative_of == "SqrtBackward0"
    assert found.cause.kind == "infinite derivative"
    assert ".sqrt()" in found.fault.source


def test_a_row_that_is_masked_as_a_whole(run, batches):
    class Masked(nn.Module):
        def forward(self, x):
            scores = x @ x.transpose(-2, -1)
            mask = torch.full(scores.shape[-2:], -math.inf).triu(0)
            return (scores + mask).softmax(-1) @ x

    one = run()
    one.model.blocks[0] = Masked()
    found = debugged(one, batches())
    assert found.fault.operator == "aten._softmax.default"
    assert found.cause.kind == "all masked"
    assert found.fault.masked_rows == 4


def test_masks_and_values_that_are_taken_away_are_no_fault(run, batches):
    """The fault comes later in the same step."""

    class Harmless(nn.Module):
        def forward(self, x):
            scores = x @ x.transpose(-2, -1)
            scores = scores + torch.full(scores.shape[-2:], -math.inf).triu(1)
            away = torch.where(x.detach() > 0, x.detach().log(), 0.0)
            return scores.softmax(-1) @ x + 0 * away

    one = run()
    one.model.blocks[0] = Harmless()
    assert debugged(one, batches(), n_steps=12).outcome == "finite"
    one.model.blocks[1] = Within(one.model.blocks[1], lambda x: x / 0)
    found = debugged(one, batches())
    assert (found.fault.operator, found.fault.module) == ("aten.div.Tensor", "blocks.1")


def test_a_mask_in_a_buffer_is_no_fault(run, batches):
    class Masked(nn.Module):
        def __init__(self, diagonal):
            super().__init__()
            self.register_buffer("mask", torch.full((9, 9), -math.inf).triu(diagonal))

        def forward(self, x):
            return (x @ x.transpose(-2, -1) + self.mask).softmax(-1) @ x

    one = run()
    one.model.blocks[0] = Masked(1)
    assert debugged(one, batches(), n_steps=12).outcome == "finite"
    one.model.blocks[1] = Masked(0)
    found = debugged(one, batches())
    assert (found.outcome, found.cause.kind) == ("found", "all masked")


def test_a_run_that_stays_finite_is_the_run_without_a_watch(run, batches):
    one = run()
    torch.manual_seed(0)
    other = run()
    found = debugged(one, batches(), n_steps=25)
    for ids in itertools.islice(batches(), 25):
        last = other(ids)
    assert (found.outcome, found.n_steps) == ("finite", 25)
    assert found.last_loss == float(last)
    assert found.watching.n_snapshots == 3
    for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_batches_that_end_end_the_run(run, batches):
    assert debugged(run(), batches(7)).n_steps == 7
    with pytest.raises(PeakwardError, match="expected batches for one step at least"):
        debugged(run(), [])


def test_a_skipped_step_of_a_scaler_is_no_fault(run, batches):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=3)

    class Scaled(run):
        def __call__(self, ids):
            self.optimizer.zero_grad()
            loss = self.loss(self.model(ids).float(), ids)
            scaler.scale(loss * 2.0**12).backward()
            scaler.step(self.optimizer)
            scaler.update()
            return loss.detach()

    found = debugged(Scaled(), batches(), stateful=[scaler])
    assert scaler.get_scale() < 2.0**120
    assert found.outcome == "finite"


def test_compiled_code_is_located_eagerly(run, batches):
    one = run()
    one.model.blocks[1] = Within(one.model.blocks[1], lambda x: x / 0)
    for block in one.model.blocks:
        block.compile(backend="eager")
    found = debugged(one, batches())
    assert (found.fault.operator, found.fault.module) == ("aten.div.Tensor", "blocks.1")


def test_a_model_of_transformers(batches):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2},
            **{"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 11},
        )
    )
    model.model.layers[1].post_attention_layernorm.variance_epsilon = 0.0
    model.model.layers[1].self_attn.o_proj.weight.data.zero_()
    model.model.layers[0].mlp.down_proj.weight.data.zero_()
    model.model.layers[0].self_attn.o_proj.weight.data.zero_()
    model.model.embed_tokens.weight.data[5] = 0.0
    optimizer = torch.optim.SGD(model.lm_head.parameters(), lr=1e-3)
    given = [ids % 5 for ids in itertools.islice(batches(), 30)]
    given[FAULT_AT][1, 0] = 5

    def step(ids):
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    found = pw.debug(
        step, model=model, optimizer=optimizer, batches=given, n_steps=30, snapshot_every=10
    )
    assert found.fault.step == FAULT_AT
    assert found.fault.operator == "aten.rsqrt.default"
    assert found.fault.module == "model.layers.1.post_attention_layernorm"
    assert found.cause.kind == "zero variance"
    assert (found.trials[0].fix, found.trials[0].passes) == ("epsilon of norm", True)


def test_a_step_without_batches_repeats_by_its_random_state(run):
    one = run()

    def step():
        ids = torch.randint(11, (4, 9))
        loss = one(ids)
        return loss / 0 if bool((ids == 0).sum() > 8) else loss

    found = pw.debug(step, model=one.model, optimizer=one.optimizer, n_steps=400, snapshot_every=50)
    assert found.outcome in ("found", "finite")
    assert found.outcome == "finite" or found.replayed_bitwise


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"stateful": [3]},
            "expected objects with state_dict and load_state_dict in stateful, got int",
        ),
        ({"folder": "/no/such/place"}, "expected an existing folder for snapshots"),
        ({"n_steps": 0}, "n_steps"),
        ({"batches": 3}, "expected a loader that gives batches, got 3"),
    ],
)
def test_bad_input_is_one_line(options, line, run, batches):
    one = run()
    given = {"batches": batches(), **options}
    with pytest.raises(PeakwardError, match=line) as refused:
        pw.debug(one, model=one.model, optimizer=one.optimizer, **given)
    assert "\n" not in str(refused.value)


def test_a_step_that_returns_several_values_is_refused(run, batches):
    one = run()
    with pytest.raises(
        PeakwardError, match=r"expected a step that returns its loss, got a tensor of shape"
    ):
        pw.debug(one.model, model=one.model, batches=batches())


def test_a_run_of_the_decoder(make_shape):
    case = pw.case(make_shape(), batch_size=1, seq_len=8, device="cpu")
    assert debug_case(case, n_steps=6, snapshot_every=4).outcome == "finite"
    found = debug_case(case, n_steps=6, snapshot_every=4, learning_rate=1e30)
    assert found.cause.kind == "learning rate"
    with pytest.raises(PeakwardError, match="expected the pass train_step, got forward"):
        debug_case(pw.case("tiny", batch_size=1, seq_len=8, pass_="forward", device="cpu"))
