"""`peakward trace`, through its command line."""

import json
from pathlib import Path

import pytest

from peakward.cli.main import main
from peakward.records import codec
from peakward.records.finding import TraceReport

TRACES = Path(__file__).parents[2] / "data" / "traces"
COMPILED, GRAPHS = (
    str(TRACES / f"h200_decoder_{name}.json.gz") for name in ("compiled", "cuda_graphs")
)
CPU = str(TRACES / "cpu_decoder.json.gz")


def test_one_screen_says_where_the_time_went(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["trace", COMPILED]) == 0
    said = capsys.readouterr().out
    assert "GPU busy 15.0% of 34.1 ms" in said
    assert len(said.splitlines()) < 70
    assert "Launch delay, from" not in said


def test_a_cpus_trace_is_told_by_its_operators(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["trace", CPU]) == 0
    said = capsys.readouterr().out
    assert "CPU busy with operators 78.4% of a step of 12.9 ms" in said
    assert "The 8 operators that take most" in said
    assert "self time of the framework's operators" in said
    assert "kernel" not in said[said.index("Where the time went") :]
    assert len(said.splitlines()) < 70


def test_everything_of_a_cpus_trace(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["trace", CPU, "--kernels"]) == 0
    said = capsys.readouterr().out
    assert "Operators by phase" in said
    assert "outside operators" in said
    for of_a_gpu in ("critical path", "Why the GPU", "Copies and sets", "streams"):
        assert of_a_gpu not in said


def test_more_is_asked_for(capsys):
    assert main(["trace", COMPILED, "--kernels"]) == 0
    assert "Launch delay, from" in capsys.readouterr().out


def test_the_record_is_json(capsysbinary):
    assert main(["trace", COMPILED, "--json", "--phase", "backward"]) == 0
    found = codec.from_json(capsysbinary.readouterr().out, TraceReport)
    assert {each.phase for each in found.profiles[0].kernels} == {"backward"}
    assert found.diagnoses == ()


def test_findings_and_missing_signals_stand_on_the_screen(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["trace", COMPILED]) == 0
    said = capsys.readouterr().out
    assert "HOST002  The host launches work too slowly" in said
    assert "could not judge. Missing:" in said and "a case (MEM002, GEN002, NUM001)" in said


def test_evidence_and_advice_are_asked_for(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["trace", COMPILED, "--kernels"]) == 0
    said = capsys.readouterr().out
    assert "Levers: compile, cuda-graphs." in said
    assert "idle, host-bound and launch latency" in said
    assert "idle.together.by_cause_ns" in said


def test_a_part_of_a_trace_is_not_diagnosed(capsys):
    assert main(["trace", COMPILED, "--phase", "backward"]) == 0
    assert "could not judge" not in capsys.readouterr().out


def test_the_diagnosis_stands_beside_the_profile_in_json(capsysbinary):
    assert main(["trace", COMPILED, "--json"]) == 0
    found = codec.from_json(capsysbinary.readouterr().out, TraceReport)
    assert found.profiles[0].host is not None
    assert [each.code for each in found.diagnoses[0].findings] == ["HOST002"]
    assert found.job is None


def test_several_files_are_one_document_too(capsysbinary):
    assert main(["trace", COMPILED, GRAPHS, "--json"]) == 0
    found = codec.from_json(capsysbinary.readouterr().out, TraceReport)
    assert len(found.profiles) == len(found.diagnoses) == 2
    assert found.job is not None


def test_files_hold_everything(in_tmp, capsys):
    assert main(["trace", GRAPHS, "--html", "t.html", "--markdown", "t.md"]) == 0
    assert "Kernels by phase" in (in_tmp / "t.html").read_text()
    assert "Kernels by phase" in (in_tmp / "t.md").read_text()


def test_several_files_are_ranks(capsys):
    assert main(["trace", COMPILED, GRAPHS]) == 0
    said = capsys.readouterr().out
    assert "2 traces side by side" in said
    assert "0 collectives that all of them have" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected a trace, got none"),
        (["none.json"], "expected a readable trace, got 'none.json'"),
        ([COMPILED, "--phase", "forwards"], "expected a phase, got 'forwards': perhaps forward"),
        ([COMPILED, "--range", "x"], "expected a range of the trace, got 'x'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, said, in_tmp, capsys):
    assert main(["trace", *arguments]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint
    assert len(complaint.splitlines()) == 1


def test_a_hostile_name_stays_text(in_tmp, capsys):
    event = {
        "ph": "X", "cat": "kernel", "name": "<img src=x onerror=alert(1)>\x1b[2J", "pid": 0, "tid": 7,
        "ts": 1, "dur": 2, "args": {"device": 0, "stream": 7, "correlation": 1},
    }  # fmt: skip
    (in_tmp / "evil.json").write_text(json.dumps({"traceEvents": [event]}))
    assert main(["trace", "evil.json", "--html", "evil.html"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert "<img" not in (in_tmp / "evil.html").read_text()


def a_rank(folder, rank, *, late, size=8):
    """A step of a rank on a host of its own clock: its late one joins the all-reduce 30 ms after it had
    computed; the others wait 31 to 39 ms."""
    begin, clock = 1000.0, rank * 10_000_000.0
    compute = 101_000.0 if rank == late else 100_000.0 - 1_000 * (rank + (rank < late))
    joins = begin + compute + (30_000 if rank == late else 0)
    ends = begin + 101_000 + 30_000 + 4_000
    work = [
        ("sm90_xmma_gemm_bf16", begin, compute),
        ("ncclDevKernel_AllReduce_Sum_bf16", joins, ends - joins),
    ]
    events = [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1,
               "ts": clock, "dur": 150_000}]  # fmt: skip
    for at, (name, start, length) in enumerate(work, 1):
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
        events.append(call | {"ts": clock + start - 20, "dur": 5, "args": {"correlation": at}})
        kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7}
        args = {"device": 0, "stream": 6 + at, "correlation": at}
        events.append(kernel | {"ts": clock + start, "dur": length, "args": args})
    path = folder / f"rank{rank}.json"
    info = {"distributedInfo": {"rank": rank, "world_size": size}, "traceEvents": events}
    path.write_text(json.dumps(info), encoding="utf-8")
    return str(path)


def test_many_ranks_are_one_page_that_names_the_late_one(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    files = [a_rank(tmp_path, rank, late=3) for rank in (7, 0, 3, 1, 2, 4, 5, 6)]
    assert main(["trace", *files]) == 0
    said = capsys.readouterr().out
    assert "Rank 3 is late: the other 7 ranks wait 32 to 38 ms for it in collectives." in " ".join(
        said.split()
    )
    assert "COMM002  A rank is late, and the others wait for it" in said
    assert "0 to 7" in said
    assert "COMM001" not in said
    assert len(said.splitlines()) < 40
    rows = [line.split()[0] for line in said.splitlines() if "rank" in line and ".json" in line]
    assert rows == [str(each) for each in range(8)]


def test_every_ranks_report_is_asked_for(tmp_path, capsys):
    files = [a_rank(tmp_path, rank, late=1, size=2) for rank in range(2)]
    assert main(["trace", *files, "--kernels"]) == 0
    said = capsys.readouterr().out
    assert "RANK0.JSON: TIME" in said and "RANK1.JSON: TIME" in said


def said_of(files, capsys, *more):
    """The page in one line."""
    assert main(["trace", *files, *more]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_who_is_late_why_and_what_is_exposed_stands_in_sentences(tmp_path, capsys):
    said = said_of([a_rank(tmp_path, rank, late=3) for rank in range(8)], capsys)
    assert (
        "Rank 3 is the last to begin 1 of 1 collectives, on average 32.0 ms after the last of the others. "
        "Before these it has, beyond the mean of the other ranks: 30.0 ms in which its GPU is idle, 5.00 ms "
        "of sm90_xmma_gemm_bf16."
    ) in said
    assert "with no other kernel beside it for 4.00 ms (rank 3) to 42.0 ms (rank 7); 0%" in said


def test_a_broken_file_among_good_ones_is_one_line(tmp_path, capsys):
    files = [a_rank(tmp_path, rank, late=1, size=2) for rank in range(2)]
    (tmp_path / "cut.json.gz").write_bytes(b"\x1f\x8b\x08cut")
    said = said_of([str(tmp_path / "cut.json.gz"), str(tmp_path / "none.json"), *files], capsys)
    assert "2 traces side by side" in said
    assert said.count("Left out: ") == 2


def test_two_files_of_one_rank_are_one_line(tmp_path, capsys):
    files = [a_rank(tmp_path, rank, late=1, size=2) for rank in range(2)]
    again = tmp_path / "again.json"
    again.write_bytes((tmp_path / "rank1.json").read_bytes())
    said = said_of([*files, str(again)], capsys)
    assert "2 traces side by side" in said
    assert "Left out: again.json is of rank 1, as rank1.json is." in said


def test_one_of_another_job_and_one_without_gpu_work_are_left_out(tmp_path, capsys):
    files = [a_rank(tmp_path, rank, late=1, size=3) for rank in range(2)]
    other = a_rank(tmp_path, 2, late=1, size=4)
    said = said_of([*files, other, CPU], capsys)
    assert "Left out: rank2.json is of a job of 4 ranks, the others of one of 3." in said
    assert "Left out: cpu_decoder.json.gz has no GPU work" in said
    assert "no file of rank 2" in said


def test_two_recorded_processes_over_gloo(capsys):
    files = [str(TRACES / f"gloo_rank{rank}.json.gz") for rank in (1, 0)]
    said = said_of(files, capsys)
    assert "4 collectives that all of them have; rank 1 is late" in said
    assert "Rank 1 is the last to begin 4 of 4 collectives, on average 28.3 ms" in said
    assert "in which no operator runs while its host is in load batch." in said


def without_rank(file, name):
    """The file under another name, without what Kineto says of the job."""
    path = Path(file)
    told = json.loads(path.read_text())
    del told["distributedInfo"]
    path.unlink()
    new = path.parent / name
    new.parent.mkdir(exist_ok=True)
    new.write_text(json.dumps(told))
    return str(new)


def test_a_rank_that_only_a_name_tells(tmp_path, capsys):
    files = [a_rank(tmp_path, rank, late=1, size=3) for rank in range(3)]
    named = [without_rank(files[1], "trace_rank-1.json"), without_rank(files[2], "rank2/t.json")]
    said = said_of([files[0], *named], capsys)
    assert "Rank 1 is late" in said
    assert (
        "The rank is taken from the name of trace_rank-1.json, t.json, which does not say" in said
    )


def test_one_that_nothing_tells_is_left_out(tmp_path, capsys):
    files = [a_rank(tmp_path, rank, late=1, size=3) for rank in range(3)]
    said = said_of([*files[:2], without_rank(files[2], "worker.json")], capsys)
    assert "Left out: worker.json does not say its rank, as the others do." in said
    assert "no file of rank 2" in said


def test_where_nothing_can_be_read_it_is_bad_input(tmp_path, capsys):
    assert main(["trace", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
