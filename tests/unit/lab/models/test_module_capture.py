"""Any module as its operators and tensors."""

import msgspec
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.models.decoder import Decoder
from peakward.lab.models.lifetimes import LifetimeRecorder
from peakward.lab.models.module_capture import capture_module
from peakward.models.presets import model
from peakward.prediction.operators.op_graph import op_graph
from peakward.records import codec
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.op_graph import READ_BY_HOST, ModuleCapture, OpGraph


class Branching(nn.Module):
    """What runs depends on a value."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        return y.relu() if y.sum() > 0 else y


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Branching()

    def forward(self, x):
        return self.inner(x)


def decoder():
    with torch.device("meta"):
        return Decoder(model("tiny"), implementation("naive"))


def total_loss(y):
    return y.sum()


def test_a_linear_layer_s_training_by_hand():
    """2 · 8 · 4 · 16 FLOPs a product: one forward, one for the weight's gradient (the input wants
    none), and AdamW over a list."""
    found = capture_module(
        nn.Linear(4, 16), (torch.randn(8, 4),), pass_="train_step", loss=total_loss
    )
    products = {each.phase: each for each in found.graph.operators if each.flops}
    assert {phase: each.flops for phase, each in products.items()} == {
        "forward": 2 * 8 * 4 * 16,
        "backward": 2 * 8 * 4 * 16,
    }
    assert found.n_parameters == 4 * 16 + 16
    assert (found.n_rows, found.name) == (8, "Linear")
    names = {each.name for each in found.graph.operators if each.phase == "optimizer"}
    assert {"aten._foreach_lerp_", "aten._foreach_addcdiv_"} <= names
    held = {}
    for each in found.lifetimes:
        held[each.held_for] = held.get(each.held_for, 0) + each.n_bytes
    assert held["parameters"] == 4 * (4 * 16 + 16)
    assert held["gradients"] == 2 * held["parameters"], "those of two steps"
    assert held["optimizer_state"] == 2 * held["parameters"] + 2 * 4, "moments and step counts"
    assert held["inputs"] == 8 * 4 * 4


@pytest.mark.parametrize("pass_", ["forward", "forward_backward"])
def test_the_reference_decoder_as_anyone_s_module_has_its_operators(pass_):
    """All products of the closed form, module by module, and its bytes."""
    ids = torch.zeros(2, 64, dtype=torch.long)
    module = decoder()
    if pass_ == "forward":
        found = capture_module(module.eval(), (ids,))
    else:
        found = capture_module(module, (ids, ids), pass_=pass_)
    case = ModelCase(
        model=model("tiny"),
        workload=Workload(batch_size=2, seq_len=64, pass_=pass_),
        configuration=Configuration(),
        device="cpu",
    )
    closed = op_graph(case)
    for figure in ("flops", "bytes_read", "bytes_written"):
        seen, known = (
            {
                key: getattr(total, figure)
                for key, total in graph.totals(lambda each: (each.phase, each.name)).items()
                if "mm" in key[1] or "softmax" in key[1]
            }
            for graph in (found.graph, closed)
        )
        assert seen == known


def mixture(dtype):
    shape = msgspec.structs.replace(model("tiny"), n_experts=4, n_active_experts=2)
    with torch.device("meta"):
        return shape, Decoder(shape, implementation("naive")).to(dtype)


def test_a_mixture_whose_experts_one_kernel_multiplies_has_the_closed_forms_operators():
    """All of its own, module by module, as CUDA has them."""
    shape, module = mixture(torch.bfloat16)
    ids = torch.zeros(2, 64, dtype=torch.long)
    found = capture_module(module, (ids, ids), pass_="forward_backward").graph
    case = ModelCase(
        model=shape,
        workload=Workload(batch_size=2, seq_len=64, pass_="forward_backward"),
        configuration=Configuration(precision="bf16"),
        device="cuda",
    )
    seen, known = (
        {
            each
            for each in OpGraph.of(
                msgspec.structs.replace(each, scattered=None) for each in graph.operators
            ).operators
            if ".ff" in (each.module or "") and ".ff_norm" not in each.module
        }
        for graph in (found, op_graph(case))
    )
    assert seen == known
    assert any(each.name == "aten._grouped_mm" and each.flops for each in seen)


def test_a_loop_over_experts_is_refused_as_values_decide_it():
    _, module = mixture(torch.float32)
    ids = torch.zeros(2, 64, dtype=torch.long)
    with pytest.raises(PeakwardError, match="operators do not depend on values"):
        capture_module(module, (ids, ids), pass_="forward_backward")


def test_the_module_is_left_as_it_was():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: each.clone() for name, each in module.state_dict().items()}
    capture_module(module, (torch.randn(8, 4),), pass_="train_step", loss=total_loss)
    assert all(torch.equal(before[name], each) for name, each in module.state_dict().items())
    assert all(each.grad is None for each in module.parameters())
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())


def compiled(of):
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    if of == "itself":
        return torch.compile(module, backend="eager")
    (module if of == "in place" else module[1]).compile(backend="eager")
    return module


@pytest.mark.parametrize(
    ("of", "place"),
    [("itself", "the module itself"), ("in place", "the module itself"), ("a part", "1")],
)
def test_a_compiled_module_is_not_predicted_as_an_eager_one(of, place):
    with pytest.raises(PeakwardError, match=f"runs eagerly, got one that is compiled in {place}: "):
        capture_module(compiled(of), (torch.randn(2, 4),))


def test_size_is_no_obstacle():
    """A matrix of 4 TiB is described, not made."""
    with torch.device("meta"):
        module = nn.Linear(2**20, 2**20, bias=False)
    found = capture_module(module, (torch.empty(4, 2**20, device="meta"),))
    assert found.graph.operators[0].flops == 2 * 4 * 2**40


@pytest.mark.parametrize("wrapped", [(Branching(), "the module itself"), (Outer(), "inner")])
def test_a_branch_on_a_value_is_refused_with_its_place(wrapped):
    module, place = wrapped
    with pytest.raises(PeakwardError, match=f"_local_scalar_dense.default in {place}"):
        capture_module(module, (torch.randn(2, 4),))


class Longest(nn.Module):
    """Computes as many columns as the longest of some lengths."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x, lengths):
        return self.linear(x[:, : int(lengths.max())])


def test_integers_that_are_given_decide_what_runs_and_the_host_waits_for_them():
    x = torch.empty(2, 16, 8, device="meta")
    found = capture_module(Longest(), (x, torch.tensor([3, 5])))
    (product,) = [each for each in found.graph.operators if each.flops]
    assert product.flops == 2 * 2 * 5 * 8 * 4
    assert [each.count for each in found.graph.operators if each.name == READ_BY_HOST] == [1]


def test_constants_of_the_code_are_known():
    """Here the places to look at, from which a tensor is made, and the sign that the module holds."""

    class Ends(nn.Module):
        def __init__(self):
            super().__init__()
            self.padding = torch.tensor([7, 9])

        def forward(self, x, ids):
            padded = self.padding[0] in ids[:, [-1, 0]]
            return x.exp() if padded else x.sin()

    x, ids = torch.empty(2, 8, device="meta"), torch.arange(8).repeat(2, 1)
    found = capture_module(Ends(), (x, ids))
    names = {each.name for each in found.graph.operators}
    assert {"aten.exp", READ_BY_HOST} < names
    assert "aten.sin" not in names


def test_a_constant_that_something_unknown_was_written_into_is_unknown():
    class Held(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept = torch.tensor([7, 9])

        def forward(self, x):
            self.kept[0] = x.argmax()
            return x[: int(self.kept[0])]

    with pytest.raises(PeakwardError, match="operators do not depend on values"):
        capture_module(Held(), (torch.empty(8, device="meta"),))


def test_integers_without_values_are_asked_for():
    x = torch.empty(2, 16, 8, device="meta")
    with pytest.raises(PeakwardError, match="give inputs that have values"):
        capture_module(Longest(), (x, torch.empty(2, dtype=torch.long, device="meta")))


def test_what_an_unknown_value_was_written_into_is_unknown():
    class Written(nn.Module):
        def forward(self, x, lengths):
            lengths = lengths.clone()
            lengths[0] = x.argmax()
            return x[: int(lengths[0])]

    with pytest.raises(PeakwardError, match="operators do not depend on values"):
        capture_module(Written(), (torch.randn(4), torch.tensor([3, 5])))


def test_what_has_no_loss_is_refused():
    with pytest.raises(PeakwardError, match=r"a loss of one element .* got a tensor of \(2, 4\)"):
        capture_module(nn.Linear(4, 4), (torch.randn(2, 4),), pass_="forward_backward")


def test_mixed_precision_casts_its_weights():
    found = capture_module(nn.Linear(4, 16), (torch.randn(8, 4),), autocast=torch.bfloat16)
    assert {each.name for each in found.graph.operators} >= {"aten._to_copy", "aten.addmm"}
    (product,) = [each for each in found.graph.operators if each.flops]
    assert {each.dtype for each in product.inputs} == {"bfloat16"}


@pytest.mark.parametrize("pass_", ["forward", "forward_backward"])
def test_autocast_keeps_its_casts_of_weights_until_the_forward_pass_is_over(pass_):
    """Three of 256 × 256 in bf16, which without the cache are let go one by one where nothing trains."""
    module = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(3)))
    x = torch.randn(1, 256)

    def casts_at_once(cached):
        found = capture_module(
            module,
            (x,),
            pass_=pass_,
            loss=total_loss,
            autocast=torch.bfloat16,
            autocast_cache=cached,
        )
        casts = [each for each in found.lifetimes if each.n_bytes == 256 * 256 * 2]
        return max(sum(a.made <= b.made <= a.last for a in casts) for b in casts)

    assert casts_at_once(cached=True) == 3
    assert casts_at_once(cached=False) == (1 if pass_ == "forward" else 3)


def test_transformers_own_models_are_captured_by_name_of_their_inputs():
    transformers = pytest.importorskip("transformers")
    settings = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
    with torch.device("meta"):
        module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings))
    ids = torch.zeros(2, 16, dtype=torch.long)
    found = capture_module(
        module.eval(), kwargs={"input_ids": ids, "labels": ids}, pass_="train_step"
    )
    assert found.n_rows == 32
    assert found.n_parameters == sum(each.numel() for each in module.parameters())
    assert {each.phase for each in found.graph.operators} == {"forward", "backward", "optimizer"}
    paths = {each.module for each in found.graph.operators}
    assert "transformer.h.*.attn.c_attn" in paths


def test_a_capture_is_a_record():
    found = capture_module(nn.Linear(4, 4), (torch.randn(2, 4),))
    assert codec.from_json(codec.to_json(found), ModuleCapture) == found
    again = capture_module(nn.Linear(4, 4), (torch.randn(2, 4),))
    other = capture_module(nn.Linear(4, 5), (torch.randn(2, 4),))
    assert again.fingerprint == found.fingerprint != other.fingerprint


def test_a_loss_of_the_user_s_own():
    found = capture_module(
        nn.Linear(4, 4),
        (torch.randn(2, 4),),
        pass_="forward_backward",
        loss=lambda y: F.cross_entropy(y, torch.zeros(2, dtype=torch.long)),
    )
    assert "aten.nll_loss_forward" in {each.name for each in found.graph.operators}


def test_tensors_that_the_module_or_the_loss_has_of_its_own_are_taken_along():
    class Masked(nn.Module):
        mask = torch.ones(4)

        def forward(self, x):
            return x * self.mask

    target = torch.zeros(2, 4)
    x = torch.randn(2, 4)
    with pytest.raises(PeakwardError, match="expected a parameter to train, got none"):
        capture_module(Masked(), (x,), pass_="forward_backward", loss=lambda y: y.sum())
    module = nn.Sequential(nn.Linear(4, 4), Masked())
    found = capture_module(
        module, (x,), pass_="forward_backward", loss=lambda y: F.mse_loss(y, target)
    )
    assert "aten.mse_loss" in {each.name for each in found.graph.operators}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_targets_may_lie_on_the_meta_device(device):
    target = torch.zeros(2, dtype=torch.long, device=device)
    found = capture_module(
        nn.Linear(4, 4),
        (torch.empty(2, 4, device="meta"),),
        pass_="forward_backward",
        loss=lambda y: F.cross_entropy(y, target),
    )
    (scored,) = [x for x in found.graph.operators if x.name == "aten.nll_loss_forward"]
    assert [each.shape for each in scored.inputs] == [(2, 4), (2,)]


def test_what_running_it_did_to_the_module_is_undone():
    """A cache made at the first call, a counter, and a list that grows."""

    class Caching(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.cos, self.n, self.seen = nn.Linear(4, 4), None, 0, []

        def forward(self, x):
            if self.cos is None:
                self.cos = torch.arange(4).float().cos()
            self.n += 1
            self.seen.append(x)
            return self.linear(x) * self.cos

    module = Caching()
    capture_module(module, (torch.randn(2, 4),))
    assert (module.cos, module.n, module.seen) == (None, 0, [])
    assert type(module(torch.randn(2, 4))) is torch.Tensor


def test_a_tensor_given_twice_lies_in_memory_once():
    class Add(nn.Module):
        def forward(self, x, y):
            return x + y

    x = torch.randn(256)
    once, twice = (capture_module(Add(), given) for given in ((x, x), (x, x.clone())))
    held = [
        sum(each.n_bytes for each in found.lifetimes if each.held_for == "inputs")
        for found in (once, twice)
    ]
    assert held == [1024, 2048]


@pytest.mark.parametrize(
    ("module", "x", "settings", "line"),
    [
        (nn.Linear(4, 4), torch.randn(2, 4), {"pass_": "train"}, "expected a pass of forward"),
        (nn.Linear(4, 4), torch.randn(2, 4), {"autocast": "bf16"}, "bfloat16 or torch.float16"),
        (nn.Linear(4, 4), torch.randn(2, 5), {}, "got RuntimeError in the module itself"),
        (nn.Identity(), torch.randn(2, 4), {}, "got one without operators"),
        (nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8), {}, "aten.convolution in the module itself"),
        (nn.LSTM(4, 4), torch.randn(2, 1, 4), {}, "whose arithmetic is known here"),
        (nn.Linear(4, 4), [{"x": object()}], {}, "plain values, got object"),
    ],
)
def test_what_cannot_be_captured_is_refused_in_a_line(module, x, settings, line):
    with pytest.raises(PeakwardError, match=line) as refused:
        capture_module(module, (x,), **settings)
    assert "\n" not in str(refused.value)


def test_what_cannot_be_counted_is_refused_at_once():
    """A scan over a thousand positions would take minutes to say so."""
    ran = []

    class Scan(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Conv1d(4, 4, 3, padding=1, groups=4)

        def forward(self, x):
            x = self.mix(x)
            ran.append(x)
            return x

    with pytest.raises(PeakwardError, match=r"aten\.convolution in mix"):
        capture_module(Scan(), (torch.randn(1, 4, 8),))
    assert not ran


def test_token_ids_are_tokens_and_other_inputs_are_not():
    ids, x = torch.zeros(2, 16, dtype=torch.long), torch.randn(2, 4)
    assert capture_module(nn.Embedding(8, 4), (ids,)).tokens == 32
    assert capture_module(nn.Linear(4, 4), (x,)).tokens is None
    assert capture_module(nn.Linear(4, 4), (x,), tokens=2).tokens == 2


@pytest.mark.parametrize("tokens", [0, -5, float("nan"), float("inf")])
def test_a_step_of_no_tokens_has_no_rate(tokens):
    with pytest.raises(PeakwardError, match="expected tokens above 0"):
        capture_module(nn.Linear(4, 4), (torch.zeros(2, 4),), tokens=tokens)


def test_a_loss_is_differentiated_wherever_the_caller_stands():
    with torch.no_grad():
        found = capture_module(
            nn.Linear(4, 4), (torch.randn(2, 4),), pass_="train_step", loss=total_loss
        )
    assert {each.phase for each in found.graph.operators} == {"forward", "backward", "optimizer"}


KIB = 1024


def recorded(run):
    with FakeTensorMode(), LifetimeRecorder() as line:
        run(line)
    return line


def test_a_temporary_is_there_from_its_operator_to_its_last_use():
    """Operators: empty, add, mul, neg. What add made is let go after mul."""

    def run(line):
        x = torch.empty(256)
        y = x + 1
        z = y * 2
        del y
        return (x, z.neg())

    found = recorded(run).lifetimes()
    assert [each.n_bytes for each in found] == [KIB] * 4
    assert [(each.made, each.last) for each in found] == [(0, 3), (1, 2), (2, 3), (3, 3)]


def test_a_view_makes_no_memory_and_keeps_it():
    def run(line):
        kept = torch.empty(256).view(16, 16)[:2]
        return kept + 1

    found = recorded(run).lifetimes()
    assert [each.n_bytes for each in found] == [KIB, 128]
    assert found[0].last > 2


def test_what_an_operator_of_cuda_has_for_the_meantime_is_there_while_it_runs():
    """Flags of all scores and of rows; and the gradient times the weights."""

    def run(line):
        scores = torch.empty(2, 4, 32, 32)
        weights = torch.ops.aten._safe_softmax(scores, -1)
        torch.ops.aten._softmax_backward_data(scores, weights, -1, torch.float32)

    found = recorded(run).lifetimes()
    n = 2 * 4 * 32 * 32
    passing = [(each.n_bytes, each.made) for each in found if each.made == each.last]
    assert passing[:3] == [(n, 1), (2 * 4 * 32, 1), (4 * n, 2)]


def test_what_backward_finds_is_an_activation_unless_it_is_claimed():
    def run(line):
        x = torch.empty(256, requires_grad=True)
        line.claim("parameters", (x,))
        line.enter("forward")
        y = x.exp()
        line.enter("backward")
        y.sum().backward()
        line.claim("gradients", (x.grad,))

    kinds = [each.held_for for each in recorded(run).lifetimes()]
    assert kinds[:2] == ["parameters", "activations"]
    assert "gradients" in kinds
    assert "temporaries" in kinds


def test_what_was_there_before_is_there_once_it_is_claimed():
    """Also where no operator has run yet."""
    with FakeTensorMode():
        x = torch.empty(512)
        line = LifetimeRecorder()
        line.claim("inputs", (x, None))
    (found,) = line.lifetimes()
    assert (found.n_bytes, found.held_for, found.made, found.last) == (2 * KIB, "inputs", 0, 0)


def test_an_address_may_come_back():
    """The second tensor may lie where the first lay: it is another one."""

    def run(line):
        for _ in range(3):
            torch.empty(256)

    found = recorded(run).lifetimes()
    assert [each.made for each in found] == [0, 1, 2]
    assert [each.last for each in found] == [0, 1, 2]
