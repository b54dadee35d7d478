"""What every result of the Python API can do, whichever functions and results there are."""

import ast
import builtins
import importlib
import inspect
import json
import typing
from pathlib import Path

import msgspec
import pandas
import pytest

import peakward as pw
from peakward.api import results
from peakward.cli.main import main
from peakward.records import codec
from peakward.records.calibration import Calibration, MatmulRate
from peakward.records.debugging import Hunt, Watching
from peakward.records.errors import PeakwardError
from peakward.records.generation import (
    Bandwidth,
    Batched,
    Continuation,
    Generation,
    Sampling,
    Serving,
)
from peakward.records.lever import LeverLedger
from peakward.records.measurement import Environment
from peakward.records.parallel import CollectiveTime, LinkCalibration, LinkFit
from peakward.records.plan import DryRun, PlannedStep
from peakward.records.result import LONGEST_REPR, Result
from peakward.records.study import Studies
from peakward.report.document import Facts
from peakward.report.generation import served_document
from peakward.store.database import Store
from peakward.traces.memory.memory import Memory
from peakward.traces.trace import Trace
from stored_results import index

DATA = Path(__file__).parents[2] / "data"
CASE = pw.case("tiny", batch_size=2, seq_len=16, device="cuda")
IN_BF16 = pw.case("tiny", batch_size=1, seq_len=128, levers=("bf16", "sdpa"), device="cuda")
HERE = Environment(
    device_type="cpu",
    device_name="Example CPU",
    device_memory_bytes=2**34,
    n_cores=2,
    torch="2.13.0",
    python="3.11.7",
    system="Linux",
    peakward="0.1.0",
)
NO_RESULTS = {"str", "Watch", "Optimized"}
"""Text, a loop that is still running, whose finds are a `Diagnosis`, and a live model with its levers, whose
`report` is a study."""


def returned(function: object) -> set[str]:
    """The names of the types that a function's annotation says it returns, those of tuples included."""
    said = inspect.signature(function).return_annotation
    text = said if isinstance(said, str) else getattr(said, "__name__", str(said))
    names = {each.id for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Name)}
    names |= {each.__name__ for each in typing.get_args(said) if hasattr(each, "__name__")}
    return names - {"tuple", "None"}


def functions() -> dict[str, object]:
    named = {name: getattr(pw, name) for name in pw.__all__}
    return {name: each for name, each in named.items() if inspect.isfunction(each)}


def methods(kind: type) -> dict[str, object]:
    return {
        name: each
        for name, each in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in vars(Result)
    }


def class_of(name: str) -> type:
    """The class of that name that a function of the API returns."""
    for function in functions().values():
        if name in returned(function):
            found = vars(importlib.import_module(function.__module__)).get(name)
            if found is not None:
                return found
    raise AssertionError(name)


RETURNED = sorted(set().union(*map(returned, functions().values())) - NO_RESULTS)


def calibration() -> Calibration:
    return Calibration(
        environment=HERE,
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=1.0,
        matmul=(MatmulRate(compute_type="fp32", size=512, flops_per_s=1e12),),
        copy_bytes_per_s=1e11,
        copy_size_bytes=2**30,
    )


def link_calibration() -> LinkCalibration:
    return LinkCalibration(
        device_name="Example GPU",
        n_ranks=2,
        backend="nccl",
        torch="2.13.0",
        times=(
            CollectiveTime(
                collective="all-reduce", n_bytes=2**20, time_s=1e-4, bus_bytes_per_s=2**20 / 1e-4
            ),
        ),
        fits=(
            LinkFit(collective="all-reduce", latency_s=1e-5, bus_bytes_per_s=2e11, worst_error=0.1),
        ),
    )


def hunt() -> Hunt:
    return Hunt(
        name="step",
        environment=HERE,
        outcome="finite",
        n_steps=10,
        last_loss=2.5,
        watching=Watching(
            snapshot_every=10, n_snapshots=1, snapshot_bytes=100, snapshots_s=0.1, run_s=2.0
        ),
    )


def generation() -> Generation:
    return Generation(
        model="small",
        shape=pw.model("tiny"),
        stored="Q4_1",
        computed_in="fp32",
        environment=HERE,
        sampling=Sampling(temperature=0.8, top_k=40, top_p=0.9),
        continuations=(
            Continuation(
                prompt="To be, ", text="or not", n_prompt_tokens=4, n_new_tokens=3, ended=True
            ),
        ),
        prefill_s=0.1,
        time_to_first_token_s=0.11,
        decode_s=0.5,
        n_steps=2,
        tokens_per_s=4.0,
        bytes_per_step=5e8,
        bandwidth=Bandwidth(bytes_per_s=1e10, source="calibrated"),
        bandwidth_share=0.2,
    )


def serving() -> Serving:
    one = generation()
    return Serving(
        model=one.model,
        shape=one.shape,
        stored=one.stored,
        computed_in=one.computed_in,
        environment=HERE,
        sampling=one.sampling,
        rows=2,
        n_pages=8,
        page_size=16,
        continuations=one.continuations,
        n_equal=1,
        ways=tuple(
            Batched(
                batching=batching,
                serve_s=0.5,
                n_steps=2,
                row_use=0.75,
                tokens_per_s=6.0,
                first_token_s=(0.1,),
                done_s=(0.4,),
            )
            for batching in ("static", "continuous")
        ),
    )


def of_trace() -> pw.Study:
    return pw.trace(DATA / "traces" / "h200_decoder_compiled.json.gz")


@pytest.fixture(scope="module")
def made() -> dict[str, Result]:
    """A result of every type, by hand or by the functions that give it."""
    trace = of_trace()
    memory = pw.memory(DATA / "snapshots" / "oom.pickle.gz")
    study = codec.from_json(index()["2026-11-21-h200-run-small"].read(), pw.Study)
    work = pw.ServingWorkload(batch_size=1, prompt_len=512, output_len=16)
    other = pw.trace(DATA / "traces" / "h200_decoder_cuda_graphs.json.gz")
    job = results.record(trace)
    found: list[Result] = [
        CASE,
        pw.module_case("py:module:factory", batch_size=1, seq_len=8, device="cuda"),
        pw.model("tiny"),
        pw.device("h200"),
        pw.lever("bf16"),
        pw.floor(CASE, "h200"),
        pw.predict(CASE, "h200"),
        pw.plan(CASE, ["h200"]),
        pw.plan_serving("llama-3-8b", work, ["h200"]),
        pw.plan_layouts(IN_BF16, "h200", 8),
        study,
        Studies(studies=(study,)),
        study.measurements[0],
        calibration(),
        trace,
        memory,
        job,
        other.profile(),
        other.breakdown(),
        other.idle(),
        other.critical_path(),
        memory.report(),
        pw.findings(trace),
        DryRun(command="x", steps=(PlannedStep(what="measure", predicted_s=1.0),), budget_s=9.0),
        generation(),
        serving(),
        link_calibration(),
        hunt(),
        LeverLedger(sources=("a.db",), entries=(), worst=(), unpredicted=(), n_trials=0),
    ]
    return {type(each).__name__: each for each in found}


@pytest.mark.parametrize("name", RETURNED)
def test_what_a_function_returns_is_a_result(name):
    assert issubclass(class_of(name) if name != "Result" else Result, Result)


@pytest.mark.parametrize("kind", [Trace, Memory])
def test_what_a_method_returns_is_a_result(kind):
    known = vars(importlib.import_module(kind.__module__))
    said = {
        inspect.signature(method).return_annotation
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in vars(Result)
    }
    records = {each for each in said if isinstance(each, type) and each in known.values()}
    assert records
    assert all(issubclass(each, Result) for each in records)


def test_every_kind_of_result_is_tried_here(made):
    kinds = {each.__name__ for each in results.kinds()} | {"Trace", "Memory"}
    assert set(RETURNED) - {"Result"} <= kinds
    assert kinds - set(made) == {"Job"}, "make one of it in `made`"


KINDS = sorted({each.__name__ for each in results.kinds()} - {"Job"} | {"Trace", "Memory"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_says_itself_in_a_few_lines(kind, made):
    shown = repr(made[kind])
    assert shown.startswith(f"{kind}(")
    assert len(shown) <= LONGEST_REPR + 40
    assert "\n" not in shown


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_has_every_view(kind, made):
    found = made[kind]
    assert pw.markdown(found).startswith("## ")
    assert pw.html(found).startswith("<!doctype html>")
    shown = found._repr_html_()
    assert shown.startswith("<iframe ")
    assert shown.count("<") == 2, "the page is escaped"
    assert json.loads(json.dumps(found.to_dict())) == json.loads(
        msgspec.json.encode(results.record(found))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_becomes_a_table(kind, made):
    found = made[kind]
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    record = results.record(found)
    lists = [getattr(record, name) for name in record.ROWS]
    assert len(frame) == 1 if not lists else len(frame) >= len(next(filter(None, lists), ()))


def test_the_rows_are_what_one_would_tabulate(made):
    study, trace = made["Study"], made["Trace"]
    assert list(study.to_pandas()["lever"]) == [each.lever for each in study.trials]
    assert {"time_ratio", "time_ratio_low", "time_ratio_high", "verdict"} <= set(study.to_pandas())
    kernels = trace.profile().kernels
    assert list(trace.to_pandas()["total_ns"]) == [each.total_ns for each in kernels]
    assert list(made["Diagnosis"].to_pandas()["code"]) == ["HOST002"]
    assert made["Measurement"].to_pandas()["summary_median_s"][0] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_is_read_back_by_python_and_by_report(kind, made, in_tmp, capsysbinary):
    found = made[kind]
    found.save("found.json")
    assert pw.load("found.json") == results.record(found)
    assert main(["report", "found.json"]) == 0
    assert capsysbinary.readouterr().out.strip()
    assert main(["report", "found.json", "--json"]) == 0
    assert capsysbinary.readouterr().out == Path("found.json").read_bytes()


def test_no_two_kinds_have_the_same_fields():
    for one in results.kinds():
        tag = one.__struct_config__.tag_field
        known = msgspec.structs.fields(one)
        for fields in (known, [each for each in known if each.required]):
            names = frozenset(each.encode_name for each in fields) | ({tag} if tag else set())
            alike = [kind for kind in results.kinds() if results._is_of(kind, names)]
            assert alike == [one]


def test_a_file_is_overwritten_only_by_force(in_tmp):
    path = in_tmp / "case.json"
    CASE.save(path)
    before = path.read_bytes()
    with pytest.raises(PeakwardError) as refused:
        pw.model("tiny").save(path)
    assert str(refused.value) == (
        f"expected a new file, got {str(path)!r}: overwrite it with force=True"
    )
    assert path.read_bytes() == before
    pw.model("tiny").save(str(path), force=True)
    assert pw.load(path) == pw.model("tiny")
    with pytest.raises(PeakwardError, match="expected a file in an existing folder"):
        CASE.save(in_tmp / "none" / "case.json")
    assert [each.name for each in in_tmp.iterdir()] == ["case.json"]


def test_a_save_that_fails_leaves_what_was_there(in_tmp, monkeypatch):
    path = in_tmp / "case.json"
    CASE.save(path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(PeakwardError, match="No space left on device"):
        CASE.save(path, force=True)
    assert path.read_bytes() == before
    assert [each.name for each in in_tmp.iterdir()] == ["case.json"]


def test_without_pandas_one_line_says_what_to_install(monkeypatch):
    plain = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.partition(".")[0] == "pandas":
            raise ImportError(name)
        return plain(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(PeakwardError) as refused:
        results.frame(CASE)
    assert str(refused.value) == (
        "expected pandas for a DataFrame, got none installed: pip install pandas"
    )


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"not json", "expected a Study record"),
        (b'{"schema_version": 9, "record": {"a": 1}}', "Study"),
    ],
)
def test_a_file_of_something_else_is_refused_in_one_line(content, line, in_tmp, capsys):
    Path("a.json").write_bytes(content)
    with pytest.raises(PeakwardError, match=line):
        pw.load("a.json")
    assert main(["report", "a.json"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_what_is_no_result_has_no_report():
    with pytest.raises(
        PeakwardError, match="expected a result such as a study, a plan or a trace, got 3"
    ):
        pw.html(3)


def test_a_database_is_no_saved_result(tmp_path):
    place = tmp_path / "here.db"
    Store.open(place).close()
    with pytest.raises(PeakwardError, match=r"got the database .*here.db: name it to `pw.apply`"):
        pw.load(place)


def test_texts_of_one_length_are_told_by_one_number():
    shown = served_document(serving())
    blocks = (*shown.blocks, *(block for section in shown.sections for block in section.blocks))
    facts = {
        each.name: each.value
        for block in blocks
        if isinstance(block, Facts)
        for each in block.facts
    }
    assert (facts["tokens of a prompt"], facts["tokens of a text"]) == ("4", "3")
