"""`pw.trace` and `peakward trace`: which device a trace is taken to be of."""

import gzip
import json
from pathlib import Path

import pytest

import peakward as pw
from peakward.cli.main import main
from peakward.records.errors import PeakwardError
from peakward.traces.trace import Trace

COMPILED = Path(__file__).parents[2] / "data" / "traces" / "h200_decoder_compiled.json.gz"
GIB = 2**30


@pytest.fixture
def of_device(tmp_path):
    """The same trace, by a driver that gives another name and memory."""

    def made(name: str, memory_bytes: int) -> Path:
        trace = json.loads(gzip.decompress(COMPILED.read_bytes()))
        for each in trace["deviceProperties"]:
            each |= {"name": name, "totalGlobalMem": memory_bytes}
        path = tmp_path / "trace.json"
        path.write_text(json.dumps(trace))
        return path

    return made


def has_roof(trace: Trace) -> bool:
    return any(each.roof_share is not None for each in trace.profile().operators)


def test_the_device_that_the_trace_names_is_its_roof():
    found = pw.trace(COMPILED)
    assert found.device is not None
    assert found.device.key == "h200-141"
    assert has_roof(found)
    assert found.select(phase="forward").device == found.device


def test_a_name_that_means_several_has_no_roof_and_says_how_to_choose(of_device):
    found = pw.trace(of_device("NVIDIA A100", 80 * GIB))
    assert found.device is None
    assert not has_roof(found)
    (said,) = (each for each in found.profile().incomplete if "The device may be" in each)
    assert "a100-sxm-80 or a100-pcie-80" in said
    assert "'NVIDIA A100'" in said
    assert "--device a100-sxm-80" in said


@pytest.mark.parametrize("name", ["NVIDIA A100", "NVIDIA Something"])
def test_what_the_trace_leaves_open_is_settled_by_hand(of_device, name):
    found = pw.trace(of_device(name, 80 * GIB), device="a100-sxm-80")
    assert found.device is not None
    assert found.device.key == "a100-sxm-80"
    assert has_roof(found)
    assert not any("The device may be" in each for each in found.profile().incomplete)


def test_no_other_device_than_the_trace_says_is_taken(of_device):
    path = of_device("NVIDIA A100", 80 * GIB)
    with pytest.raises(PeakwardError) as refused:
        pw.trace(path, device="h200")
    assert str(refused.value) == (
        "expected a device that trace.json can be of, got h200-141: "
        "it says 'NVIDIA A100', which is a100-sxm-80 or a100-pcie-80"
    )


def test_the_command_line_and_python_refuse_what_means_several_alike(of_device, capsys):
    path = of_device("NVIDIA A100", 80 * GIB)
    with pytest.raises(PeakwardError) as refused:
        pw.trace(path, device="a100-80")
    assert main(["trace", str(path), "--device", "a100-80"]) == 2
    assert capsys.readouterr().err == f"peakward: {refused.value}\n"
    assert str(refused.value) == (
        "expected one device, got 'a100-80', which is a100-sxm-80 or a100-pcie-80: name one"
    )


def test_the_command_line_settles_it_too(of_device, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    path = str(of_device("NVIDIA A100", 80 * GIB))
    assert main(["trace", path]) == 0
    assert "The device may be a100-sxm-80 or a100-pcie-80" in capsys.readouterr().out
    assert main(["trace", path, "--device", "a100-sxm-80"]) == 0
    assert "The device may be" not in capsys.readouterr().out
