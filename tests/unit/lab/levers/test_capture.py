"""A captured step against the step itself: its operators, FLOPs and bytes, counted another way."""

import math
from collections import Counter, defaultdict

import msgspec
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from peakward.lab.levers.capture import _path, capture
from peakward.lab.levers.prepare import prepare
from peakward.lab.models.op_recorder import OpRecorder
from peakward.models.presets import model
from peakward.prediction.flops import attended_pairs, phase_flops, recomputed_flops
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.op_graph import OpGraph
from tiers import in_full

aten = torch.ops.aten


@pytest.fixture
def make_case(make_shape):
    """make_case(shape changes, configuration, workload): a small case."""

    def make(shape=None, configuration=None, workload=None):
        return ModelCase(
            model=make_shape(**(shape or {})),
            workload=Workload(**{"batch_size": 2, "seq_len": 12, **(workload or {})}),
            configuration=Configuration(**(configuration or {})),
            device="cpu",
        )

    return make


SETTINGS = {
    "plain": ({}, {}, {}),
    "forward": ({}, {}, {"pass_": "forward"}),
    "bf16": ({"n_kv_heads": 2}, {"precision": "bf16"}, {}),
    "mixed": ({"qkv_bias": True, "bias": True}, {"precision": "bf16-mixed"}, {"accumulate": 2}),
    "sdpa": ({"n_kv_heads": 2}, {"attention": "sdpa"}, {}),
    "sdpa window": ({"window": 4}, {"attention": "sdpa", "precision": "bf16-mixed"}, {}),
    "checkpointing": ({}, {"checkpointing": "every-block", "precision": "bf16-mixed"}, {}),
    "selective": ({}, {"checkpointing": "selective"}, {}),
    "fp16-mixed": ({}, {"precision": "fp16-mixed"}, {"pass_": "forward_backward"}),
    "fp8": ({}, {"precision": "fp8"}, {"seq_len": 16}),
    "gpt2": (
        {"norm": "layernorm", "positions": "learned", "tied_head": True, "gated": False},
        {"optimizer": "adamw-fused"},
        {},
    ),
    "loop": ({"positions": "alibi"}, {"optimizer": "adamw-loop"}, {}),
}
QUICK = ("mixed", "selective", "loop")
each_setting = pytest.mark.parametrize(
    "setting", [*QUICK, *in_full(each for each in SETTINGS if each not in QUICK)]
)


class Addresses(TorchDispatchMode):
    """Bytes by phase of a step that is really run, from the addresses that operands cover.

    A union of addresses over all inputs, and over all outputs; what an operator changes is told by
    its name.
    """

    def __init__(self):
        super().__init__()
        self.phase, self.moved = None, {}

    def mark(self, phase):
        self.phase = phase
        self.moved.setdefault(phase, [0, 0])

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given, made = tensors((args, kwargs)), tensors(result)
        known = {each.untyped_storage().data_ptr() for each in given if each.numel()}
        made = [each for each in made if each.untyped_storage().data_ptr() not in known]
        if name == "_fused_adamw_":
            made = tensors((args[0], args[2], args[3]))
        elif name.endswith("_"):
            made = tensors(args[0])
        elif name.startswith(("fp8_linear_delayed", "fp8_swiglu")):
            made.append(given[-1])
        if self.phase and made and "empty" not in name and name != "lift_fresh":
            self.moved[self.phase][0] += self.read(name, args, given)
            self.moved[self.phase][1] += covered(made)
        return result

    def read(self, name, args, given):
        if name in ("ones_like", "zeros_like", "new_zeros"):
            return 0
        if name == "embedding":
            return covered(given[1:]) + args[1].numel() * args[0][0].nbytes
        if name == "nll_loss_forward":
            return covered(given[1:]) + args[1].numel() * 4
        if name == "nll_loss_backward":
            return covered([given[0], *given[2:]])
        return covered(given)


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def covered(operands):
    """Bytes at the addresses of these tensors."""
    found = defaultdict(list)
    for each in operands:
        offsets = torch.zeros(1, dtype=torch.int64)
        for size, stride in zip(each.shape, each.stride(), strict=True):
            offsets = (offsets[:, None] + torch.arange(size) * stride).flatten()
        size = each.element_size()
        found[size].append(each.data_ptr() + offsets * size)
    return sum(size * torch.cat(places).unique().numel() for size, places in found.items())


@each_setting
def test_bytes_are_those_that_a_real_step_touches(setting, make_case):
    case = make_case(*SETTINGS[setting])
    with prepare(case) as step:
        step.step()
        with Addresses() as addresses:
            step.step(addresses.mark)
    totals = capture(case).totals(lambda each: each.phase)
    counted = {phase: [each.bytes_read, each.bytes_written] for phase, each in totals.items()}
    addresses.moved.pop(None)
    assert counted == addresses.moved


@each_setting
def test_flops_are_those_of_torchs_counter(setting, make_case):
    shape, configuration, workload = SETTINGS[setting]
    workload = {"pass_": "forward_backward", **workload}
    case = make_case(shape, configuration, workload)
    fused = aten._scaled_dot_product_flash_attention_for_cpu
    square = 2 * 2 * 4 * 12 * 12 * 8
    left_out = {
        fused: lambda *_args, **_kwargs: 2 * square,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda *_args, **_kwargs: 5 * square
        ),
    }
    with FakeTensorMode(), prepare(case) as step:
        counter = FlopCounterMode(display=False, custom_mapping=left_out)
        with counter:
            step.step()
    (totals,) = capture(case).totals(lambda each: None).values()
    assert totals.flops == counter.get_total_flops() > 0


def masked_flops(case):
    """What naive attention computes and the mask throws away, in one forward pass."""
    shape, workload = case.model, case.workload
    pairs = workload.seq_len**2 - attended_pairs(workload.seq_len, window=shape.window)
    heads = workload.batch_size * shape.n_layers * shape.n_heads
    return workload.accumulate * 4.0 * heads * shape.head_dim * pairs


@pytest.mark.parametrize("window", [4, *in_full([None])])
@pytest.mark.parametrize("attention", ["naive", *in_full(["sdpa"])])
def test_beyond_the_models_flops_are_those_that_the_mask_throws_away(attention, window, make_case):
    """And, of the fused kernel, the scores that its backward pass computes once more."""
    case = make_case({"window": window}, {"attention": attention}, {"accumulate": 3})
    totals = capture(case).totals(lambda each: each.phase)
    needed, masked = phase_flops(case), masked_flops(case)
    again = 3 * 2 * (2 * 2 * 4 * 12 * 12 * 8) if attention == "sdpa" else 0
    assert {phase: each.flops for phase, each in totals.items()} == {
        "forward": needed["forward"] + masked,
        "backward": needed["backward"] + 2 * masked + again,
        "optimizer": 0,
    }


def test_recomputation_is_in_the_backward_pass_but_for_each_blocks_last_product(make_case):
    case = make_case({}, {"checkpointing": "every-block"})
    totals = capture(case).totals(lambda each: each.phase)
    spared = case.model.n_layers * 2.0 * 24 * case.model.d_model * case.model.d_ff
    again = recomputed_flops(case) + masked_flops(case) - spared
    assert totals["forward"].flops == phase_flops(case)["forward"] + masked_flops(case)
    backward = phase_flops(case)["backward"] + 2 * masked_flops(case)
    assert totals["backward"].flops == backward + again


def test_parameters_are_updated_in_the_bytes_that_an_update_must_move(make_case):
    """The fused optimiser: reads of four tensors, writes of three, and its step counts."""
    case = make_case({}, {"optimizer": "adamw-fused"})
    totals = capture(case).totals(lambda each: (each.phase, each.name))
    with prepare(case) as step:
        n_bytes = 4 * step.n_parameters
        n_tensors = sum(1 for _ in step.model.parameters())
    update = totals["optimizer", "aten._fused_adamw_"]
    assert update == (1, 0, 4 * n_bytes + 4 * n_tensors, 3 * n_bytes)


def test_a_model_larger_than_this_machine_is_captured():
    case = ModelCase(
        model=msgspec.structs.replace(model("llama-3-8b"), n_layers=2),
        workload=Workload(batch_size=64, seq_len=8192),
        device="cpu",
    )
    products = [each for each in capture(case).operators if each.name == "aten.mm"]
    head = [each for each in products if each.module == "readout.head" and each.phase == "forward"]
    assert [math.prod(each.outputs[0].shape) for each in head] == [64 * 8192 * 128_256]


REFUSED = {
    "expected an eager step to capture, got a compiled": {"compile": "default"},
    "expected an eager step to capture, got .* a CUDA graph": {"cuda_graphs": True},
    "expected an optimiser of torch's .*, got adamw-triton": {"optimizer": "adamw-triton"},
    "expected a step that no value decides .*, got fp16-mixed": {"precision": "fp16-mixed"},
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_dispatch_would_not_show_is_refused(line, make_case):
    with pytest.raises(PeakwardError, match=line):
        capture(make_case({}, REFUSED[line]))


def recorded(case):
    """The operators of a step that is really run."""
    with prepare(case) as step:
        step.step()
        with OpRecorder(step.model, name=_path) as recorder:
            step.step(recorder.mark)
    seen = recorder.graph().operators
    return OpGraph.of(msgspec.structs.replace(each, scattered=None) for each in seen)


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_of_a_mixture_all_of_whose_experts_are_active_no_value_decides_anything(
    precision, make_case
):
    case = make_case({"n_experts": 3, "n_active_experts": 3}, {"precision": precision})
    assert set(capture(case).operators) == set(recorded(case).operators)


def test_a_mixtures_tokens_are_dealt_evenly(make_case):
    """Of 48 visits to 5 experts, in a loop over them."""
    case = make_case({"n_experts": 5, "n_active_experts": 2}, {}, {"pass_": "forward"})
    rows = Counter()
    for each in capture(case).operators:
        if each.module == "blocks.*.ff.down" and each.name == "aten.mm":
            rows[each.inputs[0].shape[0]] += each.count
    assert rows == {9: 2 * case.model.n_layers, 10: 3 * case.model.n_layers}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_step_of_cuda_without_a_gpu_is_refused(make_case):
    with pytest.raises(
        PeakwardError, match="expected a GPU to capture a step of CUDA on, got none"
    ):
        capture(msgspec.structs.replace(make_case(), device="cuda"))
