"""No wrong call of a public function ends in an error of Python's own, and none leaves a file."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import peakward as pw

sys.path.insert(0, str(Path(__file__).parent))
import wrong_calls as table

LINE = re.compile(r"([^\n]*: )?expected [^\n]*, got [^\n]*")
RECORDS = {
    "Calibration",
    "Configuration",
    "Measurement",
    "ModelCase",
    "ModelShape",
    "ModuleCase",
    "PeakwardError",
    "Protocol",
    "ServingWorkload",
    "Store",
    "Study",
    "Workload",
    "__version__",
}
"""Of these, calls with a wrong field are among the wrong values of the functions that take them."""


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    study = pw.study("scaling", device="cpu", db=tmp_path_factory.mktemp("made") / "made.db")
    return table.calls(study, None, pw.trace(table.TRACE))


@pytest.fixture(autouse=True)
def no_worker(monkeypatch):
    monkeypatch.setattr("peakward.lab.measure.process.subprocess.Popen", table.NoProcess)


def test_every_public_function_and_parameter_is_in_the_table(calls):
    known = {each.function.__name__ for each in calls}
    assert set(pw.__all__) - RECORDS <= known
    for name in known & set(pw.__all__):
        function = getattr(pw, name)
        code = function.__code__
        takes = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        held = {part for each in calls if each.function is function for part in each.wrong}
        assert takes <= held, name


def test_each_wrong_call_is_refused_in_one_line(calls, in_tmp):
    ended_otherwise = {}
    for name, call in table.wrong_calls(calls):
        try:
            call()
        except pw.PeakwardError as refused:
            line = str(refused)
            if not LINE.fullmatch(line) or len(line) > 1000:
                ended_otherwise[name] = line[:200]
        except BaseException as error:  # noqa: BLE001  whatever it is counts
            ended_otherwise[name] = repr(error)[:200]
        else:
            ended_otherwise[name] = "accepted"
        if left := list(in_tmp.iterdir()):
            ended_otherwise[name] = f"left {left}"
            break
    assert ended_otherwise == {}


def test_what_is_harmlessly_converted_is_accepted(in_tmp, monkeypatch):
    case = pw.case("tiny", batch_size=np.int64(2), seq_len=np.int32(8), device="cpu")
    assert case == pw.case("tiny", batch_size=2, seq_len=8, device="cpu")
    assert type(case.workload.batch_size) is int
    own = pw.case(case.model, batch_size=2, seq_len=8, levers={"sdpa"}, device="cpu")
    assert own == pw.case("tiny", batch_size=2, seq_len=8, levers=["sdpa"], device="cpu")
    study = pw.study("scaling", device="cpu", db=Path("a.db"))
    for place in ("b.json", Path("c.json")):
        study.save(place)
        assert pw.load(place) == study
    for path in ("a.db", Path("a.db")):
        with pw.Store.open_read_only(path) as store:
            assert store.study("last") == study
    on_gpu = pw.case("tiny", batch_size=1, seq_len=8, device="cuda")
    priced = [
        pw.plan(on_gpu, ("h200",), price_per_gpu_hour=price) for price in (2, np.float64(2), [2.0])
    ]
    assert len({each.devices for each in priced}) == 1
