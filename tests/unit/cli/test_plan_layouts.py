"""`peakward plan --gpus`, through its command line."""

import pytest

import peakward as pw
from peakward.cli.main import main
from peakward.records import codec
from peakward.records.layouts import LayoutPlan

CASE = ("--model", "llama-3-8b", "--device", "h100-sxm", "--seq-len", "2048")


def planned(capsysbinary, *words):
    assert main(["plan", *CASE, *words, "--json"]) == 0
    return codec.from_json(capsysbinary.readouterr().out, LayoutPlan)


def test_the_first_lines_say_what_to_take_and_how_to_launch_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["plan", *CASE, "--gpus", "16"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in said)
    top = "\n".join(said[:9])
    for part in ("Take ", "tok/s", "torchrun --nnodes 2 --nproc-per-node 8", "Layout(dp="):
        assert part in top
    assert len(said) < 60


def test_one_node_needs_no_meeting_point(capsys):
    assert main(["plan", *CASE, "--gpus", "4"]) == 0
    assert "torchrun --standalone --nproc-per-node 4 train.py" in capsys.readouterr().out


def test_what_was_not_said_is_that_of_a_large_run(capsysbinary):
    settings = planned(capsysbinary, "--gpus", "8").case.configuration
    assert (settings.precision, settings.attention) == ("bf16-mixed", "sdpa-cudnn")
    assert (settings.compile, settings.optimizer) == ("default", "adamw-fused")
    assert main(["plan", "--model", "llama-2-7b", "--gpus", "8", "--device", "h200", "--json"]) == 0
    work = codec.from_json(capsysbinary.readouterr().out, LayoutPlan).case.workload
    assert (work.batch_size, work.seq_len) == (1, 4096)  # As long as the model takes, up to 8192.


def test_levers_and_options_make_the_case(capsysbinary):
    found = planned(capsysbinary, "--gpus", "8", "--lever", "bf16", "--compile", "none")
    settings = found.case.configuration
    assert (settings.precision, settings.compile) == ("bf16", "none")
    kept = planned(capsysbinary, "--gpus", "8", "--checkpointing", "every-block")
    assert {each.checkpointing for each in kept.layouts} == {"every-block"}


def test_axes_and_links_are_options(capsysbinary):
    words = ("--tensor", "2", "--pipeline", "2", "--data", "zero2", "--micro-batch", "1")
    words += ("--gpus-per-node", "4", "--network", "25", "--oversubscription", "2")
    found = planned(capsysbinary, "--gpus", "16", *words, "--reduce-type", "fp32")
    assert {(each.layout.tp, each.layout.pp, each.layout.data) for each in found.layouts} == {
        (2, 2, "zero2")
    }
    links = found.interconnect
    assert (links.gpus_per_node, links.network_bytes_per_s, links.oversubscription) == (4, 25e9, 2)
    assert found.reduce_type == "fp32"


def test_sequences_are_split_where_that_is_asked_for(capsysbinary):
    found = planned(capsysbinary, "--gpus", "16", "--context", "2", "--data", "fsdp")
    assert {each.layout.cp for each in found.layouts} == {2}
    assert min(each.context_s for each in found.layouts) > 0


def test_blocks_that_cannot_be_predicted_compiled_are_planned_without_and_said(capsysbinary):
    words = ("plan", "--model", "mixtral-8x7b", "--gpus", "64", "--device", "h100-sxm", "--json")
    assert main(list(words)) == 0
    found = codec.from_json(capsysbinary.readouterr().out, LayoutPlan)
    assert found.case.configuration.compile == "none"
    assert "planned without compilation" in found.notes[0]
    assert main([*words, "--compile", "default"]) == 2


def test_python_has_the_same(capsysbinary):
    case = pw.case(
        "llama-3-8b",
        batch_size=1,
        seq_len=2048,
        levers=("bf16-mixed", "attention=sdpa-cudnn", "compile", "fused-optimizer"),
        device="cuda",
    )
    found = pw.plan_layouts(case, "h100-sxm", 16)
    assert found.layouts == planned(capsysbinary, "--gpus", "16").layouts
    assert "Take fsdp" in pw.markdown(found) or "Take zero2" in pw.markdown(found)


def test_no_layout_that_fits_is_said(capsys):
    words = ("--model", "llama-3.1-405b", "--gpus", "8", "--device", "h100-sxm")
    assert main(["plan", *words]) == 0
    assert "No layout fits: the smallest needs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--tensor", "8", "--pipeline", "4"), "expected at most 16 ranks, one a GPU"),
        (("--tensor", "16"), "expected tensor parallelism inside of a node of 8 GPUs"),
        (("--model", "qwen2.5-0.5b", "--tensor", "4"), "expected n_heads that 4 ranks"),
        (("--pipeline", "16", "--n-layers", "8"), "a block for each of 16 stages, got 8"),
        (("--micro-batch", "3"), "a batch that a layout's micro-batches divide, got none"),
        (("--data", "flat"), "expected a value of --data, got 'flat'"),
        (("--reduce-type", "fp16"), "expected a value of --reduce-type, got 'fp16'"),
        (("--network", "0"), "expected --network above 0"),
        (("--oversubscription", "0.5"), "a factor from 1 to 1000 for --oversubscription"),
        (("--gpus-per-node", "16"), "expected at most 8 GPUs in a node"),
        (("--gpus", "999999999"), "expected a whole number from 1 to 131,072 for --gpus"),
        (("--gpus", "12"), "expected a number of GPUs that nodes of 8 make up, got 12"),
        (("--device", "h100-sxm,h200"), "expected one kind of device"),
        (("--price", "2"), "expected no --price beside --gpus"),
        (("--pass", "forward"), "expected a train_step to plan layouts"),
        (("--precision", "fp32"), "expected precision bf16-mixed or bf16"),
        (("--checkpointing", "selective"), "expected checkpointing none or every-block"),
        (("--cache", "fp8"), "expected --output-len beside --cache"),
        (("--gpus", "1", "--tensor", "2"), "expected --gpus without --parallel beside --tensor"),
        (("--gpus", "8", "--parallel", "ddp", "--data", "ddp"), "beside --data, got none"),
    ],
)
def test_bad_input_is_one_line(words, line, capsys):
    given = dict(zip(CASE[::2], CASE[1::2], strict=True)) | {"--gpus": "16"}
    given |= dict(zip(words[::2], words[1::2], strict=True))
    assert main(["plan", *(word for pair in given.items() for word in pair)]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
