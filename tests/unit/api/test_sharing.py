"""`run` with several devices, on jobs of ranks that answer from a table."""

import json
import time

import msgspec
import pytest

import peakward as pw
from peakward.api import sharing
from peakward.cli.main import main
from peakward.lab.measure import nvml
from peakward.lab.measure.messages import Failed, Measured
from peakward.models.presets import model
from peakward.records import codec
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Run
from peakward.records.parallel import RanksWork, RankUse, Sent
from peakward.records.plan import DryRun
from peakward.records.study import Study
from peakward.report.dry_run import document

SPEED = {"ddp": 0.9, "overlapped": 0.95, "zero1": 0.85, "zero2": 0.8, "fsdp": 0.94}


@pytest.fixture
def own_work():
    """Seconds that a rank itself works in a step, by rank; the others take 10 ms."""
    return {}


@pytest.fixture
def asked(monkeypatch, own_work):
    """The cases that were measured, with their numbers of steps."""
    found = []

    def measure(case, protocol, timeout_s, stopped):
        found.append((case.layout, protocol.min_steps))
        layout = case.layout
        if layout.pp > 1:
            return Failed(
                status="crashed", reason="rank 1 was ended by SIGKILL in step 3 (forward)"
            )
        speed = SPEED[layout.data] if layout.dp > 1 else 1.0 if layout.tp == 1 else 0.5
        n_ranks = layout.n_ranks
        use = RankUse(
            held_bytes={"parameters": 100 // (n_ranks if layout.data == "fsdp" else 1)},
            sent=(Sent(collective="all-reduce", n_calls=1, n_bytes=8),) if n_ranks > 1 else (),
        )
        steps = tuple(0.010 / speed * (1 + 0.001 * (at % 3)) for at in range(protocol.min_steps))
        return Measured(
            run=Run(warmup_s=(), steps_s=steps),
            doubts=(),
            phases=(),
            memory=None,
            telemetry=None,
            compile=None,
            n_parameters=25,
            loss=1.0,
            ranks=RanksWork(
                backend="gloo",
                ranks=tuple(
                    msgspec.structs.replace(
                        use,
                        own_s=tuple(
                            own_work.get(rank, 0.010) * (1 + 0.01 * ((rank + at) % 3))
                            for at in range(6)
                        ),
                    )
                    for rank in range(n_ranks)
                ),
            ),
        )

    monkeypatch.setattr("peakward.lab.parallel.measured.measure", measure)
    for name in (sharing.TORCHRUN, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return found


RUN = ("run", "--device", "cpu", "--gpus", "2", "--seq-len", "16")


def test_all_layouts_are_screened_and_the_fastest_confirmed(
    asked, tmp_path, monkeypatch, capsysbinary
):
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "--json"]) == 0
    screened = [layout for layout, n in asked if n == 10]
    confirmed = [layout for layout, n in asked if n == 40]
    assert len(screened) == 8 and screened[0].n_ranks == 1
    assert [each.data for each in confirmed] == ["ddp", "overlapped", "fsdp", "ddp"]
    study = codec.from_json(capsysbinary.readouterr().out, Study)
    assert study.name == "layouts" and study.complete
    said = [each.text for each in study.conclusions]
    assert said[0].startswith("On 2 ranks, overlapped 2 is the fastest of those timed")
    assert "pp 2, 1f1b, 4 micro-batches (crashed)" in said[0]
    assert any("overlapped 2 scales best" in each and "95.0%" in each for each in said)
    assert any("fits: overlapped 2" in each and "fsdp 2" in each for each in said)
    names = [column.name for column in study.tables[1].columns]
    rows = [dict(zip(names, row, strict=True)) for row in study.tables[1].rows]
    (lost,) = [each for each in rows if each["status"] == "crashed"]
    assert lost["reason"] == "rank 1 was ended by SIGKILL in step 3 (forward)"
    del asked[:]
    assert main([*RUN, "--json"]) == 0
    assert asked == []  # All was stored.


@pytest.mark.parametrize("n", [2, 4])
def test_a_late_rank_is_named(n, asked, own_work, tmp_path):
    own_work[1] = 0.0131
    case = ModelCase(model=model("tiny"), workload=Workload(batch_size=4, seq_len=16), device="cpu")
    study = pw.run(case, gpus=n, db=tmp_path / "a.db")
    (said,) = [each for each in study.conclusions if "late" in each.text]
    assert said.text.startswith(
        f"On {n} ranks, rank 1 is late (COMM002): its own work of a step lasts 31.0% longer than that of "
        f"the other{'s, which wait' if n > 2 else ' one, which waits'} for it (13.2 ms, not 10.1 ms; medians"
    )
    assert ("Perhaps the other one is fast" in said.text) == (n == 2)
    measured = {each.id for each in study.measurements if each.status == "ok"}
    assert set(said.evidence[0].from_ids) <= measured
    assert not any("is late" in each for each in study.notes)
    (table,) = [each for each in study.tables if each.title == "Own work of the ranks"]
    layouts, ranks = zip(*((row[1], row[2]) for row in table.rows), strict=True)
    assert set(ranks) == {1} and f"zero1 {n}" not in layouts


def test_equal_ranks_are_told_as_such(asked, tmp_path):
    case = ModelCase(model=model("tiny"), workload=Workload(batch_size=4, seq_len=16), device="cpu")
    study = pw.run(case, gpus=2, db=tmp_path / "a.db")
    assert not any("late" in each.text for each in study.conclusions)
    (said,) = [each for each in study.notes if "late" in each]
    assert said.startswith("On 2 ranks, none is late: over 8 jobs")


def test_python_says_the_same(asked, tmp_path):
    case = ModelCase(model=model("tiny"), workload=Workload(batch_size=2, seq_len=16), device="cpu")
    study = pw.run(case, gpus=2, db=tmp_path / "a.db")
    settings = {each.case.configuration.attention for each in study.measurements}
    assert settings == {"sdpa"} and study.conclusions[0].text.startswith("On 2 ranks, overlapped")
    forward = msgspec.structs.replace(
        case, workload=Workload(batch_size=2, seq_len=16, pass_="forward")
    )
    with pytest.raises(PeakwardError, match="expected a train_step"):
        pw.run(forward, gpus=2, db=tmp_path / "a.db")
    with pytest.raises(PeakwardError, match="expected nothing that is about levers"):
        pw.run(case, gpus=2, levers=("sdpa",), db=tmp_path / "a.db")


def test_a_budget_that_ends_says_what_is_left(asked, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    began_s, now = time.monotonic(), iter(range(1000))
    monkeypatch.setattr(sharing, "monotonic", lambda: began_s + next(now))
    assert main([*RUN, "--budget", "8s"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "The budget ended before these were timed" in page
    assert "The same command with a longer --budget goes on" in page


def test_the_time_of_a_budget_begins_with_the_command(asked, tmp_path, monkeypatch, capsys):
    """What is imported before the first layout is timed is of the budget too: here 100 s."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sharing, "monotonic", lambda: time.monotonic() + 100.0)
    assert main([*RUN, "--budget", "90s"]) == 0
    assert asked == []
    assert "The budget ended before these were timed" in " ".join(capsys.readouterr().out.split())


def test_a_dry_run_lists_the_layouts(asked, tmp_path, monkeypatch, capsysbinary):
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "--dry-run", "--json"]) == 0
    found = codec.from_json(capsysbinary.readouterr().out, DryRun)
    assert len(found.steps) == 8 and asked == []
    # Steps on a CPU are not predicted: no sum is made of nothing.
    assert document(found).headline.startswith("8 steps; the budget ends it after about ")


def test_heads_that_cannot_be_split_are_no_candidate_and_told(
    asked, tmp_path, monkeypatch, capsysbinary
):
    monkeypatch.chdir(tmp_path)
    words = ("--n-heads", "1", "--n-layers", "1", "--d-model", "32")
    assert main([*RUN, *words, "--json"]) == 0
    assert all(layout.tp == layout.pp == 1 for layout, _ in asked)
    notes = json.loads(capsysbinary.readouterr().out)["record"]["notes"]
    assert any(
        "expected n_heads that 2 ranks of tensor parallelism can share" in each for each in notes
    )
    assert any("expected at least a block for each of 2 stages" in each for each in notes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "65"), "a whole number from 1 to 64 for --gpus"),
        (("--gpus", "2", "--lever", "sdpa"), "expected no --lever beside --gpus 2"),
        (("--gpus", "2", "--pass", "forward"), "expected a train_step of one micro-batch"),
        (("--gpus", "2", "--accumulate", "2"), "expected a train_step of one micro-batch"),
        (("--gpus", "2", "--cuda-graphs", "on"), "expected"),
        (("--gpus", "2", "--checkpointing", "sqrt"), "expected checkpointing of none, every-block"),
        (("--gpus", "2", "--precision", "fp16-mixed"), "expected precision of fp32, tf32"),
        (("--gpus", "2", "--model", "tiny,micro"), "expected"),
        (
            ("--gpus", "2", "--model", "hf:gpt", "--attention", "sdpa"),
            "expected attention of as-written",
        ),
    ],
)
def test_bad_input_gets_one_line(words, said, asked, tmp_path, monkeypatch, capsys):
    gpt = tmp_path / "gpt" / "config.json"
    gpt.parent.mkdir()
    gpt.write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--device", "cpu", *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert asked == [] and list(tmp_path.iterdir()) == [gpt.parent]


def test_a_user_s_module_is_not_split(asked, tmp_path, monkeypatch, capsysbinary):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    monkeypatch.chdir(tmp_path)
    words = ("--gpus", "2", "--model", "hf:config.json", "--batch-size", "2", "--seq-len", "16")
    assert main(["run", "--device", "cpu", *words, "--json"]) == 0
    found = codec.from_json(capsysbinary.readouterr().out, Study)
    assert {layout.data for layout, _ in asked} >= {"ddp", "zero1", "zero2", "fsdp"}
    assert all(layout.tp == layout.pp == 1 for layout, _ in asked)
    cases = [each.case for each in found.measurements]
    assert {each.source for each in cases} == {"hf:config.json"}
    assert {each.configuration.attention for each in cases} == {"as-written"}
    assert any("its parts have no rule how to be split" in each for each in found.notes)


def test_more_gpus_than_there_are_is_refused(asked, monkeypatch, tmp_path):
    here = sharing.Machine(environment=_gpu(), compute_capability=(9, 0), has_compiler=True)
    monkeypatch.setattr(nvml, "visible_names", lambda: ("NVIDIA H100",))
    case = ModelCase(
        model=model("tiny"), workload=Workload(batch_size=2, seq_len=16), device="cuda"
    )
    with pytest.raises(PeakwardError, match="expected a GPU for each of 4 ranks, got 1"):
        sharing.share(case, 4, here, tmp_path / "a.db", budget_s=10.0, command="x")


def _gpu():
    from peakward.records.measurement import Environment

    return Environment(
        device_type="cuda",
        device_name="NVIDIA H100",
        device_memory_bytes=2**36,
        n_cores=1,
        python="3",
        system="x",
        peakward="0",
    )


def test_under_torchrun_the_first_rank_alone_works(asked, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["run", "--device", "cpu", "--seq-len", "16"]
    environ = {sharing.TORCHRUN: "none", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "1"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main(words) == 0
    assert asked == [] and not list(tmp_path.iterdir())
    monkeypatch.setenv("RANK", "0")
    assert main([*words, "--gpus", "3"]) == 2
    assert "expected --gpus as torchrun has ranks, 2, got 3" in capsys.readouterr().err
    assert main(words) == 0
    assert max(layout.n_ranks for layout, _ in asked) == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert main(words) == 2
    assert "expected all ranks on one machine, got 1 of 2" in capsys.readouterr().err


def test_a_start_that_was_said_is_kept():
    given = type("Given", (), {"precision": "fp32", "model": None})()
    found = sharing.start(given, {"attention": "naive"}, "cuda")
    assert found == {"attention": "naive", "compile": "default", "optimizer": "adamw-fused"}
    case = ModelCase(
        model=model("tiny"),
        workload=Workload(batch_size=2, seq_len=16),
        configuration=Configuration(precision="bf16"),
        device="cpu",
    )
    assert sharing.with_start(case) == case
