"""A user's module in a case, predicted by its operators."""

import msgspec
import pytest

import peakward as pw
from peakward.lab.levers.module_prediction import capture_as_it_comes, capture_case
from peakward.records.errors import PeakwardError
from tiers import rows_in_full


@pytest.mark.parametrize("pass_", ["forward", "train_step"])
def test_products_are_counted_as_the_layers_have_them(pass_, make_module_case):
    """2·m·n·k of the linear layers: 3 + 1 + 2 + 2 widths squared a block, and the head."""
    found = capture_case(make_module_case("py:tiny_gpt:build", pass_=pass_))
    tokens, width, vocab_size = 32, 32, 50
    forward = 2 * tokens * width * (2 * 8 * width + vocab_size)
    linear = sum(
        each.count * each.flops
        for each in found.graph.operators
        if each.name in ("aten.mm", "aten.addmm", "aten.bmm")
    )
    assert linear == forward * (3 if pass_ == "train_step" else 1)
    assert found.tokens == tokens


def test_a_batch_of_another_size_than_the_workloads_is_refused(make_module_case):
    case = make_module_case("py:tiny_gpt:as_object", workload={"batch_size": 4, "seq_len": 512})
    with pytest.raises(
        PeakwardError, match=r"expected a batch of 4 × 512 .*, got a first tensor of \(2, 16\)"
    ):
        capture_case(case)
    assert capture_case(make_module_case("py:tiny_gpt:as_object")).tokens == 2 * 16


@pytest.mark.parametrize(
    ("factory", "scope"), [("compiled", "model"), ("compiled_by_blocks", "block")]
)
def test_a_module_that_comes_compiled_is_captured_so(factory, scope, make_module_case):
    came = make_module_case(f"py:tiny_gpt:{factory}", pass_="forward")
    case, found = capture_as_it_comes(came)
    assert case.configuration.settings == {
        **came.configuration.settings,
        "compile": "default",
        "compile_scope": scope,
    }
    wanted = make_module_case(
        "py:tiny_gpt:build", pass_="forward", compile="default", compile_scope=scope
    )
    assert found == capture_case(wanted)
    assert capture_case(came).compiled is None, "a case says what is captured"
    plan = pw.plan(msgspec.structs.replace(came, device="cuda"), ["h100-sxm-80"])
    assert plan.case.configuration == case.configuration


def test_recomputed_blocks_cost_products_and_save_activations(make_module_case):
    """All of a block but its last layer, of 2 widths squared in 8, where torch stops recomputing; what
    selective checkpointing keeps are the products."""

    def captured(mode):
        case = make_module_case("py:tiny_gpt:build", checkpointing=mode)
        return capture_case(case)

    def products(found):
        return sum(
            each.count * each.flops
            for each in found.graph.operators
            if each.name in ("aten.mm", "aten.addmm", "aten.bmm")
        )

    def activations(found):
        return sum(each.n_bytes for each in found.lifetimes if each.held_for == "activations")

    plain, whole, selective = map(captured, ("none", "every-block", "selective"))
    tokens, width, n_layers = 32, 32, 2
    assert products(whole) - products(plain) == n_layers * 2 * tokens * 6 * width**2
    assert products(selective) == products(plain)
    assert activations(whole) < activations(selective) < activations(plain)
    for held in ("parameters", "gradients", "optimizer_state"):
        sizes = [
            sum(each.n_bytes for each in found.lifetimes if each.held_for == held)
            for found in (plain, whole, selective)
        ]
        assert len(set(sizes)) == 1, held


def test_in_fp8_every_layer_that_can_has_its_three_products_there(make_module_case):
    """Four layers a block; the head's 50 outputs do not divide, and stay in bf16."""
    tokens, width, vocab_size = 32, 32, 50
    found = capture_case(make_module_case("py:tiny_gpt:build", precision="fp8"))
    flops = dict.fromkeys(("aten._scaled_mm", "aten.mm"), 0)
    for each in found.graph.operators:
        if each.name in flops:
            flops[each.name] += each.count * each.flops
    assert flops["aten._scaled_mm"] == 3 * 2 * tokens * 2 * 8 * width**2
    assert flops["aten.mm"] == 3 * 2 * tokens * width * vocab_size


def test_a_model_without_a_layer_for_fp8_is_not_predicted_in_it(make_module_case):
    pytest.importorskip("transformers")
    with pytest.raises(PeakwardError, match="is a Conv1D, no nn"):
        capture_case(make_module_case("hf:gpt2", precision="fp8"))


@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        ("llama", "bf16"),
        ("gpt2", "bf16-mixed"),
        *rows_in_full([("llama", "bf16-mixed"), ("gpt2", "bf16")]),
    ],
)
def test_a_model_of_transformers_is_predicted(kind, precision, make_module_case):
    pytest.importorskip("transformers")
    case = make_module_case(f"hf:{kind}", device="cuda", precision=precision)
    found = pw.predict(case, "h100-sxm-80")
    assert found.case == case
    assert found.needed_bytes > 0
    assert found.floor_s is None
    assert {"floor", "MFU"} <= {each.figure for each in found.absent}


@pytest.mark.parametrize(
    ("source", "scope"),
    [
        ("hf:llama", "block"),
        ("py:tiny_gpt:build", "model"),
        *rows_in_full([("hf:llama", "model"), ("py:tiny_gpt:build", "block")]),
    ],
)
def test_a_compiled_module_is_predicted(source, scope, make_module_case):
    """By kernels that no stored result has timed. The tiny GPT keeps little that it could compute again."""
    if source.startswith("hf:"):
        pytest.importorskip("transformers")
    workload = {"batch_size": 2048, "seq_len": 64}

    def predicted(**settings):
        given = {"device": "cuda", "precision": "bf16", "workload": workload}
        return pw.predict(make_module_case(source, **given, **settings), "h100-sxm-80")

    eager, compiled = predicted(), predicted(compile="default", compile_scope=scope)
    assert compiled.case.configuration.compile == "default"
    assert compiled.memory.peak_bytes < 1.01 * eager.memory.peak_bytes
    fused = [each for each in compiled.time.never_measured if each.startswith("inductor.")]
    assert fused
    assert not eager.time.never_measured


def test_kernels_that_nobody_timed_widen_the_interval(make_module_case):
    """Of a step that the device bounds."""
    workload = {"batch_size": 2048, "seq_len": 64}
    intervals = [
        pw.predict(
            make_module_case("py:tiny_gpt:build", device="cuda", workload=workload, **more),
            "h100-sxm-80",
        ).step_s
        for more in ({}, {"compile": "default"})
    ]
    eager, compiled = (each.high / each.low for each in intervals)
    assert compiled > eager


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"compile": "max-autotune"}, "what fuses is told of the default mode"),
        ({"compile": "default", "checkpointing": "every-block"}, "keeps of a block is not known"),
        ({"attention": "sdpa-math"}, "attention sdpa-math is not seen"),
        ({"loss": "fused"}, "loss fused is not seen"),
        ({"precision": "tf32"}, "tf32 is not seen"),
        ({"precision": "fp16-mixed"}, "loss scaling of fp16-mixed"),
    ],
)
def test_what_a_capture_does_not_see_is_refused(settings, line, make_module_case):
    case = make_module_case("py:tiny_gpt:build")
    changed = msgspec.structs.replace(case.configuration, **settings)
    with pytest.raises(PeakwardError, match=line):
        capture_case(msgspec.structs.replace(case, configuration=changed))
