"""`import peakward`: the command line's jobs from Python."""

import ast
import contextlib
import importlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import peakward as pw
from peakward.api import investigating, session
from peakward.cli.main import COMMANDS, main
from peakward.lab.measure import probe
from peakward.records import codec
from peakward.records.calibration import Calibration, Rates
from peakward.records.case import Configuration
from peakward.records.plan import Plan
from peakward.tune.investigation import Aim
from tiers import in_full


def test_every_public_name_is_there_and_documented():
    for name in set(pw.__all__) - {"__version__"}:
        found = getattr(pw, name)
        assert found.__doc__, name
    assert set(dir(pw)) == set(pw.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pw.nothing


def test_no_public_name_is_hidden_by_a_module_of_the_same_name():
    """Importing `peakward.x` binds `x` on the package, whatever `__getattr__` would have given."""
    for name in pw.__all__:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"peakward.{name}")


def test_what_type_checkers_see_is_what_there_is():
    """The imports under TYPE_CHECKING and the table of homes say the same."""
    tree = ast.parse(Path(pw.__file__).read_text())
    seen = {
        (f"{each.module}", name.name)
        for each in ast.walk(tree)
        if isinstance(each, ast.ImportFrom) and each.module.startswith("peakward.")
        for name in each.names
    }
    homes = pw._HOMES.items()
    assert seen == {(f"peakward.{home}", name) for home, names in homes for name in names}


def test_whatever_a_command_does_python_does():
    jobs = {"devices": ("calibrate", "device"), "report": ("markdown", "html", "Store")}
    for command in COMMANDS:
        for name in jobs.get(command, (command,)):
            assert name in pw.__all__


def test_findings_of_a_trace_are_those_of_the_command_line():
    name = Path(__file__).parents[2] / "data" / "traces" / "h200_decoder_compiled.json.gz"
    found = pw.findings(pw.trace(name))
    assert [each.code for each in found.findings] == ["HOST002"]
    assert found.findings[0].bound == pytest.approx(1 / (1 - found.findings[0].share))


def test_a_case_is_what_the_command_line_would_make():
    case = pw.case("tiny", batch_size=2, seq_len=16, levers=("sdpa", "bf16"), device="cpu")
    assert case.configuration == Configuration(attention="sdpa", precision="bf16")
    assert case.model == pw.model("tiny")
    own = msgspec.structs.replace(pw.model("tiny"), name="mine", vocab_size=64)
    assert pw.case(own, batch_size=1, seq_len=8, device="cpu").model == own


def test_a_case_may_name_a_configuration(in_tmp):
    (in_tmp / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2}')
    shape = pw.case("./config.json", batch_size=1, seq_len=8, device="cpu").model
    assert shape == pw.model("./config.json")
    assert (shape.name, shape.n_layers) == (in_tmp.name, 2)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"shape": "tyny"}, "expected a model, got 'tyny': perhaps tiny"),
        ({"batch_size": 0}, "for batch_size, got 0"),
        ({"seq_len": 2**19}, "expected --seq-len of at most"),
        ({"batch_size": 2**17}, "from 1 to 65,536 for batch_size"),
        ({"accumulate": 5000}, "for accumulate, got 5000"),
        ({"pass_": "train"}, "expected a pass, got 'train': perhaps train_step"),
        ({"device": "gpu"}, "expected a device, got 'gpu'"),
        ({"memory_limit_bytes": 0}, "for memory_limit_bytes, got 0"),
        ({"levers": "sdpa"}, "expected a sequence of levers, got 'sdpa': write ('sdpa',)"),
        ({"levers": ("sdap",)}, "perhaps sdpa"),
        ({"levers": ("bf16", "tf32")}, "expected one precision"),
    ],
)
def test_a_case_that_cannot_be_is_refused(given, line):
    plain = {"shape": "tiny", "batch_size": 1, "seq_len": 8, "device": "cpu"}
    with pytest.raises(pw.PeakwardError) as caught:
        pw.case(**(plain | given))
    assert line in str(caught.value)


LIMIT = {"memory_limit_bytes": "5000000"}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (LIMIT, "for memory_limit_bytes, got '5000000': give it as a number"),
        ({"memory_limit_bytes": 2.0**30}, "for memory_limit_bytes, got 1073741824.0"),
        ({"batch_size": "2"}, "for batch_size, got '2'"),
        ({"seq_len": True}, "for seq_len, got True"),
    ],
)
def test_a_number_of_another_type_is_refused(given, line, at_user_modules):
    sizes = {"batch_size": 1, "seq_len": 8, "device": "cpu"} | given
    for make in (partial(pw.case, "tiny"), partial(pw.module_case, "py:tiny_gpt:build")):
        with pytest.raises(pw.PeakwardError) as caught:
            make(**sizes)
        assert line in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [2**30, np.int64(2**30)])
def test_a_module_s_memory_limit_is_a_plain_number(size, at_user_modules):
    source = "py:tiny_gpt:build"
    made = pw.module_case(source, batch_size=1, seq_len=8, memory_limit_bytes=size, device="cpu")
    assert type(made.memory_limit_bytes) is int


TINY = pw.case("tiny", batch_size=1, seq_len=8, device="cpu")


@pytest.mark.parametrize(
    ("case", "protocol", "line"),
    [
        (replace(TINY, **LIMIT), pw.Protocol(), "got `str` - at `$.memory_limit_bytes` of the"),
        (
            replace(TINY, workload=replace(TINY.workload, seq_len="8")),
            pw.Protocol(),
            "$.workload.s",
        ),
        (replace(TINY, memory_limit_bytes=np.int64(2**30)), pw.Protocol(), "numpy.int64"),
        (TINY, pw.Protocol(timeout_s="5"), "got `str` - at `$.timeout_s` of the Protocol"),
        (TINY, pw.Protocol(timeout_s=float("nan")), "at `$.timeout_s` of the Protocol"),
    ],
)
def test_a_record_that_no_worker_could_read_is_refused_before_one_starts(
    case, protocol, line, in_tmp, monkeypatch
):
    monkeypatch.setattr("peakward.lab.measure.process.subprocess.Popen", None)
    asked = [lambda: pw.measure(case, protocol), lambda: pw.bench([case], [protocol])]
    if case is not TINY:
        asked.append(lambda: pw.run(case))
    for ask in asked:
        with pytest.raises(pw.PeakwardError) as caught:
            ask()
        assert line in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("two", [2, np.int64(2)])
def test_a_case_holds_plain_numbers(two):
    given = pw.case("tiny", batch_size=two, seq_len=two, accumulate=two, device="cpu")
    assert given == pw.case("tiny", batch_size=2, seq_len=2, accumulate=2, device="cpu")
    assert type(given.workload.batch_size) is int


@pytest.mark.parametrize(("given", "budget_s"), [({}, 100.0), ({"budget_s": 7.0}, 7.0)])
def test_a_run_may_take_as_long_as_the_command_s(given, budget_s, monkeypatch):
    nothing = contextlib.nullcontext(
        SimpleNamespace(sweep=SimpleNamespace(workers=SimpleNamespace()), store=None)
    )
    monkeypatch.setattr(session, "opened", lambda *_: nothing)
    monkeypatch.setattr(investigating, "investigated", lambda asked, *_args, **_kwargs: asked)
    asked = pw.run(pw.case("tiny", batch_size=1, seq_len=8, device="cpu"), **given)
    assert asked.budget_s == budget_s
    assert f"--budget {budget_s:g}s" in asked.command


@pytest.mark.parametrize("budget_s", [-1, 0.5, 1e6, float("nan")])
def test_a_time_that_no_run_can_have_is_refused_before_anything_runs(budget_s, in_tmp):
    import torch

    module, batch = torch.nn.Linear(2, 2), torch.ones(1, 2)
    for asked in (
        lambda: pw.run(pw.case("tiny", batch_size=1, seq_len=8, device="cpu"), budget_s=budget_s),
        lambda: pw.run(module, batch, pass_="forward", budget_s=budget_s),
        lambda: pw.investigate(lambda: module(batch), budget_s=budget_s),
    ):
        with pytest.raises(pw.PeakwardError, match="expected budget_s from 1 to 604,800, got"):
            asked()
    assert list(in_tmp.iterdir()) == []


def test_one_lever_as_a_plain_string_is_refused():
    case = pw.case("tiny", batch_size=1, seq_len=8, device="cpu")
    with pytest.raises(pw.PeakwardError, match="expected a sequence of levers, got 'sdpa'"):
        pw.run(case, levers="sdpa")


def test_the_floor_of_a_catalogued_device_needs_no_device():
    case = pw.case("small", batch_size=4, seq_len=512, device="cuda")
    prediction = pw.floor(case, "h200-141")
    assert prediction.source == "datasheet"
    assert prediction.floor_s == sum(phase.floor_s for phase in prediction.phases)
    with pytest.raises(pw.PeakwardError, match="perhaps h200-141"):
        pw.floor(case, "h201")


@pytest.mark.parametrize("alias", ["NVIDIA H200", *in_full(["h200", "H200", "h200-141"])])
def test_every_function_reads_a_device_as_the_command_line_does(alias, capsys):
    case = pw.case("small", batch_size=4, seq_len=512, device="cuda")
    work = pw.ServingWorkload(batch_size=1, prompt_len=512, output_len=16)
    assert pw.device(alias).key == "h200-141"
    assert pw.floor(case, alias) == pw.floor(case, "h200-141")
    assert pw.predict(case, alias).device == "h200-141"
    assert [each.forecast.device for each in pw.plan(case, [alias]).devices] == ["h200-141"]
    served = pw.plan_serving("llama-3-8b", work, [alias])
    assert [each.device for each in served.devices] == ["h200-141"]
    assert main(["plan", "--device", alias, "--json"]) == 0
    (planned,) = codec.from_json(capsys.readouterr().out.encode(), Plan).devices
    assert planned.forecast.device == "h200-141"


def test_a_device_that_means_several_is_refused_alike_where_one_is_asked_for():
    case = pw.case("small", batch_size=4, seq_len=512, device="cuda")
    said = "expected one device, got 'h100', which is h100-sxm-80 or h100-pcie-80: name one"
    for asked in (
        lambda: pw.device("h100"),
        lambda: pw.floor(case, "h100"),
        lambda: pw.predict(case, "h100"),
        lambda: pw.trace("none.json", device="h100"),
    ):
        with pytest.raises(pw.PeakwardError) as refused:
            asked()
        assert str(refused.value) == said
    both = [each.forecast.device for each in pw.plan(case, ["h100"]).devices]
    assert both == ["h100-sxm-80", "h100-pcie-80"]


def test_a_cpu_s_case_is_told_nothing_on_a_gpu():
    case = pw.case("small", batch_size=4, seq_len=512, device="cpu")
    module = pw.module_case("py:somewhere:model", batch_size=1, seq_len=8, device="cpu")
    for asked in (pw.floor, pw.predict):
        with pytest.raises(pw.PeakwardError, match="expected a case on a GPU, got one on a CPU"):
            asked(case, "h100-sxm-80")
    with pytest.raises(pw.PeakwardError, match="expected a case on a GPU, got one on a CPU"):
        pw.predict(module, "h100-sxm-80")


def test_a_lever_that_cannot_apply_is_refused_before_anything_runs(in_tmp):
    case = pw.case("tiny", batch_size=1, seq_len=8, device="cpu")
    with pytest.raises(pw.PeakwardError, match="fp8 needs a CUDA GPU, got a CPU"):
        pw.run(case, levers=("fp8",))
    assert list(in_tmp.iterdir()) == []


def test_cases_of_two_devices_do_not_share_a_table(in_tmp):
    cpu = pw.case("tiny", batch_size=1, seq_len=8, device="cpu")
    with pytest.raises(pw.PeakwardError, match="expected cases of one device, got 2 of 2"):
        pw.bench([cpu, msgspec.structs.replace(cpu, device="cuda")])


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (lambda case: pw.bench([]), "expected a case and a protocol .*, got no case"),
        (lambda case: pw.bench([case], []), "expected a case and a protocol .*, got no protocol"),
        (lambda case: pw.run("tiny"), "expected a case, or a module and a batch, got str alone"),
        (
            lambda case: pw.module_case("py:a:b", batch_size=1, seq_len=8, device="gpu"),
            "expected a device, got 'gpu'",
        ),
    ],
)
def test_what_nothing_can_be_made_of_is_refused_before_anything_runs(asked, line, in_tmp):
    with pytest.raises(pw.PeakwardError, match=line):
        asked(pw.case("tiny", batch_size=1, seq_len=8, device="cpu"))
    assert list(in_tmp.iterdir()) == []


def test_the_record_of_a_study_names_the_device_that_was_asked_for(in_tmp):
    command = pw.study("scaling", full=True, device="cpu").command
    assert command == "peakward study scaling --full --device cpu"
    assert pw.study("scaling").command == "peakward study scaling"


def test_the_record_of_a_run_names_the_line_that_repeats_it():
    case = pw.case("tiny", batch_size=1, seq_len=8, levers=("sdpa",), device="cpu")
    line = (
        "peakward run --model tiny --batch-size 1 --seq-len 8 --pass train_step "
        "--attention sdpa --device cpu --lever bf16 --budget 60s"
    )
    assert investigating._command(case, ("bf16",), 60.0, Aim()) == line
    reads = investigating._command(case, ("bf16",), 60.0, Aim(), "a model")
    assert reads == f"{line} --real-model 'a model'"
    sought = Aim(objective="memory", max_memory_bytes=2**29, numerics="exact")
    assert investigating._command(case, ("bf16",), 60.0, sought) == (
        f"{line} --objective memory --max-memory 0.5 --numerics exact"
    )


def test_a_lever_beyond_the_class_asked_for_is_refused_before_anything_runs(in_tmp):
    case = pw.case("tiny", batch_size=1, seq_len=8, device="cpu")
    with pytest.raises(pw.PeakwardError, match="sdpa is reordered, and --numerics exact"):
        pw.run(case, levers=("sdpa",), numerics="exact")
    assert list(in_tmp.iterdir()) == []


def test_calibrate_is_the_full_calibration(tmp_path, monkeypatch):
    measured = Calibration(
        environment=probe.environment("cpu"),
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=1.0,
        matmul=(),
        copy_bytes_per_s=1e10,
        copy_size_bytes=2**20,
        rates=Rates(),
    )
    asked = []

    def full(workers, device_type, **_kwargs):
        asked.append(device_type)
        return measured

    monkeypatch.setattr("peakward.lab.measure.calibration.full.calibrate_in_full", full)
    db = str(tmp_path / "peakward.db")
    assert pw.calibrate("cpu", db=db) == measured
    assert asked == ["cpu"]
    with pw.Store.open_read_only(Path(db)) as store:
        assert store.calibration(measured.environment.key) == measured


def test_a_module_is_predicted_by_example_inputs():
    import torch

    with torch.device("meta"):
        module = torch.nn.Linear(1024, 1024)
    x = torch.empty(64, 1024, device="meta")
    by_place = pw.predict(module, "h100-sxm-80", inputs=(x,))
    by_name = pw.predict(module, "h100-sxm-80", inputs={"input": x})
    assert by_place.step_s == by_name.step_s
    trained = pw.predict(
        module, "h100-sxm-80", inputs=(x,), pass_="train_step", loss=lambda y: y.sum()
    )
    assert trained.step_s.estimate > by_place.step_s.estimate
    assert trained.needed_bytes > by_place.needed_bytes


def test_a_case_states_its_own_settings():
    case = pw.case("small", batch_size=1, seq_len=128, device="cuda")
    with pytest.raises(pw.PeakwardError, match="expected a module to set pass_ of, got a case"):
        pw.predict(case, "h100-sxm-80", pass_="forward")
    assert pw.predict(case, "h100-sxm-80", gpus=2).communication is not None


def test_serving_is_planned_within_a_limit_that_can_be():
    work = pw.ServingWorkload(batch_size=1, prompt_len=128, output_len=16)
    found = pw.plan_serving("llama-3-8b", work, ["l4"], memory_limit_bytes=2**30)
    assert not found.devices[0].fits
    with pytest.raises(pw.PeakwardError, match="for memory_limit_bytes, got -5"):
        pw.plan_serving("llama-3-8b", work, ["l4"], memory_limit_bytes=-5)
