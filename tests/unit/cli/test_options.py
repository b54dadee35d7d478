"""Options to cases."""

import pytest

from peakward.cli import options
from peakward.cli.vocabulary import CaseOptions
from peakward.models.presets import MODELS, model
from peakward.records.case import Configuration
from peakward.records.errors import PeakwardError


def cases(**given):
    return options.cases(CaseOptions(**given), given.get("device") or "cpu")


def one(**given):
    (case,) = cases(**given)
    return case


def test_the_defaults_shrink_on_a_cpu():
    case = one()
    assert (case.model.name, case.workload.batch_size, case.workload.seq_len) == ("tiny", 2, 128)
    full = one(device="cuda")
    assert (full.model.name, full.workload.batch_size, full.workload.seq_len) == ("small", 4, 512)
    assert case.configuration == full.configuration == Configuration()
    assert case.workload.pass_ == "train_step"


def test_every_option_reaches_its_field():
    case = one(
        model="gpt2",
        batch_size="3",
        seq_len="64",
        pass_="forward_backward",
        accumulate="2",
        seed="9",
        precision="bf16",
        attention="sdpa",
        compile="default",
        compile_scope="model",
        cuda_graphs="on",
        optimizer="adamw-fused",
        checkpointing="sqrt",
        memory_limit="1.5",
    )
    work = case.workload
    assert case.model == model("gpt2")
    assert (work.batch_size, work.seq_len, work.pass_) == (3, 64, "forward_backward")
    assert (work.accumulate, work.seed) == (2, 9)
    assert case.configuration == Configuration(
        precision="bf16",
        attention="sdpa",
        compile="default",
        compile_scope="model",
        cuda_graphs=True,
        optimizer="adamw-fused",
        checkpointing="sqrt",
    )
    assert case.memory_limit_bytes == 1.5 * 2**30


def test_lists_span_a_grid_with_the_model_outermost():
    grid = cases(model="tiny,small", seq_len="32,64", precision="fp32,bf16", pass_="forward")
    assert len(grid) == len(set(grid)) == 8
    assert [each.model.name for each in grid] == ["tiny"] * 4 + ["small"] * 4
    assert [each.workload.seq_len for each in grid[:4]] == [32, 32, 64, 64]


def test_a_grid_has_a_bound():
    lengths = ",".join(str(n) for n in range(1, 202))
    with pytest.raises(PeakwardError, match="at most 10,000 cases"):
        cases(seq_len=lengths, batch_size=lengths)


def test_single_refuses_a_grid():
    with pytest.raises(PeakwardError, match=r"got a grid of 2: .*`peakward bench`"):
        options.single(CaseOptions(batch_size="1,2"), "cpu", {})


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"model": "smal"}, "expected a model, got 'smal': perhaps small"),
        ({"model": ""}, "expected a value or a comma list for --model"),
        ({"batch_size": "0"}, "from 1 to 65,536 for --batch-size, got '0'"),
        ({"batch_size": "-4"}, "for --batch-size, got '-4'"),
        ({"batch_size": ""}, "comma list for --batch-size"),
        ({"batch_size": "99999999"}, "from 1 to 65,536 for --batch-size"),
        ({"seq_len": "0"}, "for --seq-len, got '0'"),
        ({"seq_len": "1e9"}, "for --seq-len, got '1e9'"),
        ({"model": "gpt2", "seq_len": "2048"}, "at most 1,024 for the model gpt2, got 2,048"),
        ({"pass_": "train"}, "expected a pass, got 'train': perhaps train_step"),
        ({"precision": "bf61"}, "expected a value of --precision, got 'bf61': perhaps bf16"),
        ({"attention": "flish"}, "perhaps flash"),
        ({"compile": "yes"}, "expected a value of --compile, got 'yes'"),
        ({"cuda_graphs": "yes"}, "expected on or off for --cuda-graphs, got 'yes'"),
        ({"memory_limit": "0"}, "GiB from 1/1024"),
        ({"accumulate": "0"}, "for --accumulate"),
        ({"seed": "-1"}, "for --seed"),
        ({"n_heads": "3"}, "expected heads that divide d_model, got 3 heads and d_model 256"),
        ({"d_model": "0"}, "for --d-model, got '0'"),
        ({"n_layers": "100000"}, "from 1 to 1,000 for --n-layers"),
        ({"n_kv_heads": "3"}, "n_kv_heads that divide n_heads 4, got 3"),
        ({"n_heads": "4", "d_model": "12"}, "expected an even head_dim"),
        ({"n_experts": "0"}, "for --n-experts, got '0'"),
        ({"n_active_experts": "2"}, "n_active_experts of at most n_experts 1, got 2"),
        ({"model": "mixtral-8x7b", "n_experts": "1"}, "at most n_experts 1, got 2"),
        ({"model": "gpt2", "n_experts": "4"}, "no bias in a shape of 4 experts"),
    ],
)
def test_bad_input_is_one_line_that_says_what_was_expected(given, line):
    with pytest.raises(PeakwardError) as caught:
        cases(**given)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_custom_shape_keeps_the_rest_of_its_preset_and_says_what_differs():
    shape = one(n_layers="1", d_model="32", n_heads="2").model
    assert shape.name == "tiny:L1-d32-h2-kv2"
    assert (shape.n_layers, shape.d_model, shape.n_heads, shape.head_dim) == (1, 32, 2, 16)
    assert (shape.n_kv_heads, shape.d_ff) == (2, model("tiny").d_ff)


def test_a_dense_preset_can_be_given_experts():
    shape = one(d_ff="512", n_experts="8", n_active_experts="2").model
    assert shape.name == "tiny:ff512-e8-a2"
    assert (shape.n_experts, shape.n_active_experts, shape.d_ff) == (8, 2, 512)
    assert one(n_experts="4").model.n_active_experts == 1


def test_a_preset_spelt_out_is_the_preset():
    assert one(model="qwen2.5-7b", n_layers="28", n_heads="28").model == model("qwen2.5-7b")
    grouped = one(model="llama-3-8b", n_heads="64").model
    assert (grouped.n_kv_heads, grouped.head_dim) == (8, 64)


def test_settings_are_levers_and_fields():
    made = options.settings(["bf16-mixed,sdpa", "compile-scope=model,cuda_graphs=on"], "--baseline")
    assert made == {
        "precision": "bf16-mixed",
        "attention": "sdpa",
        "compile_scope": "model",
        "cuda_graphs": True,
    }
    case = options.single(CaseOptions(optimizer="adamw-loop"), "cpu", made)
    assert case.configuration == Configuration(optimizer="adamw-loop", **made)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("sdap", "expected a lever, got 'sdap': perhaps sdpa"),
        ("precison=bf16", "expected a setting in --baseline, got 'precison': perhaps precision"),
        ("precision=bf17", "expected a value of --precision, got 'bf17': perhaps bf16"),
        ("tf32,bf16", "expected one precision, got 'tf32' and 'bf16' from bf16"),
        ("cuda_graphs=maybe", "expected on or off for --cuda-graphs"),
        ("", "comma list for --baseline"),
    ],
)
def test_bad_settings(text, line):
    with pytest.raises(PeakwardError) as caught:
        options.settings([text], "--baseline")
    assert line in str(caught.value)


def test_a_setting_made_twice_must_agree():
    start = options.settings(["bf16"], "--baseline")
    assert options.single(CaseOptions(precision="bf16"), "cpu", start).configuration.precision
    with pytest.raises(PeakwardError, match="expected one precision, got 'bf16' and 'fp32'"):
        options.single(CaseOptions(precision="fp32"), "cpu", start)


def test_levers_are_named_once_each():
    assert [each.name for each in options.levers(["sdpa,compile", "sdpa"])] == ["sdpa", "compile"]
    with pytest.raises(PeakwardError, match="perhaps compile"):
        options.levers(["compil"])


def test_a_scope_of_compilation_makes_no_twins_where_nothing_is_compiled():
    grid = options.without_twins(cases(compile="none,default", compile_scope="block,model"))
    made = [(each.configuration.compile, each.configuration.compile_scope) for each in grid]
    assert made == [("none", "block"), ("default", "block"), ("default", "model")]
    alone = cases(compile_scope="model")
    assert options.without_twins(alone) == alone


def test_a_model_that_is_near_none_is_answered_by_all():
    with pytest.raises(PeakwardError) as caught:
        cases(model="zzzz")
    assert all(each.name in str(caught.value) for each in MODELS)
