"""Files of stacks, named alike on every machine."""

import re

import pytest

from peakward.traces.memory import holders
from peakward.traces.memory.holders import source_path
from peakward.traces.memory.memory import memory
from peakward.traces.memory.snapshot_file import read
from stored_results import index

from .files import written

ROOTED = re.compile(r"(?<![\w./:-])/(?:[\w.-]+/)+[\w.-]+\.(?:py|db|json|pickle)\b[^\"]*")


@pytest.mark.parametrize(
    ("filename", "short"),
    [
        ("/home/a/peakward/src/peakward/lab/models/decoder.py", "peakward/lab/models/decoder.py"),
        ("/env/lib/python3.12/site-packages/peakward/lab/x.py", "peakward/lab/x.py"),
        (
            "/run/env/lib/python3.12/site-packages/torch/nn/modules/linear.py",
            "torch/nn/modules/linear.py",
        ),
        ("/usr/lib/python3/dist-packages/torch/_tensor.py", "torch/_tensor.py"),
        ("C:\\env\\Lib\\site-packages\\torch\\_tensor.py", "torch\\_tensor.py"),
        ("/run/train.py", "train.py"),
        ("/run/models/src/llama.py", "models/src/llama.py"),
        ("/running/train.py", "/running/train.py"),
        ("/usr/lib/python3.12/threading.py", "/usr/lib/python3.12/threading.py"),
        ("train.py", "train.py"),
        ("<string>", "<string>"),
    ],
)
def test_packages_and_what_lies_below_the_directory(filename, short):
    assert source_path(filename, "/run") == source_path(filename, "/run/") == short


def test_without_a_directory_only_packages_are_shortened():
    assert source_path("/run/train.py", "") == "/run/train.py"
    assert source_path("/run/src/peakward/a.py", "") == "peakward/a.py"


def test_a_snapshot_names_lines_from_where_it_is_read(tmp_path, monkeypatch):
    frame = {"filename": str(tmp_path / "train.py"), "line": 7, "name": "step"}
    event = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, "frames": [frame]}
    path = written(tmp_path, {"segments": [], "device_traces": [[event]]})
    monkeypatch.chdir(tmp_path)
    assert holders.source(read(path), 0) == "train.py:7 step"
    (device,) = memory(path).report().devices
    assert device.peak.holders[0].source == "train.py:7 step"


def test_a_path_of_a_machine_is_seen():
    assert ROOTED.findall(
        '{"source": "/home/someone/train.py:7 step", "url": "https://x.org/home/y.py"}'
    ) == ["/home/someone/train.py:7 step"]


@pytest.mark.parametrize("result", index().results, ids=lambda each: each.name)
def test_stored_results_name_no_machine_s_folders(result):
    assert not ROOTED.findall(result.read().decode())
