"""This machine, and whether its GPU is free."""

import os
import subprocess
import sys

import pytest

from peakward.lab.measure import nvml, probe
from peakward.lab.measure.nvml import GpuProcess
from peakward.records.errors import PeakwardError

GIB = 2**30


def test_the_probe_works_where_torch_cannot_be_imported():
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from peakward.lab.measure import isolated, probe, sweep\n"
        "probe.default_device(); probe.has_compiler(); probe.compute_capability()\n"
        "print(probe.environment('cpu').n_cores)"
    )
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, env=environ
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("limit", "allowed"), [("1", 1), ("999", None), ("", None), ("2,1", None)])
def test_openmp_s_limit_counts_as_fewer_cores(limit, allowed, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    expected = allowed or len(os.sched_getaffinity(0))
    assert probe.environment("cpu").n_cores == expected


def test_cpu_environment():
    found = probe.environment("cpu")
    import torch

    assert found.device_type == "cpu"
    assert found.device_name
    assert found.device_memory_bytes > GIB // 4
    assert found.torch == torch.__version__
    assert found.python == sys.version.split()[0]
    assert found.cuda is None
    assert found.key == probe.environment("cpu").key


@pytest.mark.parametrize("cuda", [None, "13.0"])
def test_cuda_is_refused_where_there_is_none(monkeypatch, cuda):
    monkeypatch.setattr(probe, "_torch_build", lambda: ("2.11.0+x", cuda))
    monkeypatch.setattr(nvml, "visible_gpu", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    expected = "torch built for CUDA, got 2.11.0" if cuda is None else "CUDA_VISIBLE_DEVICES='7'"
    with pytest.raises(PeakwardError, match=expected):
        probe.environment("cuda")


@pytest.mark.parametrize(
    ("cuda", "gpu", "device"),
    [
        ("13.0", nvml.Gpu("a", "a"), "cuda"),
        ("13.0", None, "cpu"),
        (None, nvml.Gpu("a", "a"), "cpu"),
    ],
)
def test_default_device(monkeypatch, cuda, gpu, device):
    monkeypatch.setattr(probe, "_torch_build", lambda: ("2.11.0", cuda))
    monkeypatch.setattr(nvml, "visible_gpu", lambda: gpu)
    assert probe.default_device() == device


@pytest.mark.parametrize(
    ("source", "build"),
    [
        (
            "from typing import Optional\n__version__ = '2.11.0+cu130'\ndebug = False\n"
            "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n",
            ("2.11.0+cu130", "13.0"),
        ),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", ("2.13.0+cpu", None)),
        ("__version__ = '2.4.0'\ncuda = '12.1'\n", ("2.4.0", "12.1")),
        ("", (None, None)),
    ],
)
def test_torch_version_from_its_source(source, build):
    assert probe.parse_torch_version(source) == build


@pytest.mark.parametrize(
    ("cxx", "found"),
    [("{python}", True), ("{python} -m32", True), ("no-such-compiler", False)],
)
def test_has_compiler_looks_where_inductor_does(monkeypatch, cxx, found):
    monkeypatch.setenv("CXX", cxx.format(python=sys.executable))
    assert probe.has_compiler() is found


def test_the_compiler_is_what_cxx_says_with_its_options(monkeypatch):
    monkeypatch.setenv("CXX", f"{sys.executable} -x 'a b'")
    assert probe.compiler() == (sys.executable, "-x", "a b")
    monkeypatch.setenv("CXX", "no-such-program -x")
    assert probe.compiler() is None


def test_has_compiler_needs_a_path(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert not probe.has_compiler()


IDLE = {"processes": (), "utilisation_percent": (0, 0, 1), "used_bytes": GIB // 2}


def judge(**changes):
    facts = {**IDLE, "own_pids": (), "own_bytes": 0, **changes}
    return probe.judge_busy(
        facts["processes"],
        facts["utilisation_percent"],
        facts["used_bytes"],
        own_pids=facts["own_pids"],
        own_bytes=facts["own_bytes"],
    )


def test_an_idle_gpu_is_not_busy():
    assert judge() is None


def test_another_process_is_named_with_its_memory():
    two = (GpuProcess(1, 3 * GIB), GpuProcess(2, None))
    assert judge(processes=two[:1]) == "1 other process on the GPU, holding 3.0 GiB"
    assert judge(processes=two) == "2 other processes on the GPU, holding 3.0 GiB"


def test_our_own_worker_is_not_another_process():
    worker = (GpuProcess(5, GIB),)
    own = {"own_pids": (5,), "own_bytes": GIB, "used_bytes": 3 * GIB // 2}
    assert judge(processes=worker, **own) is None
    # A container lists it under the host's number, or not at all.
    assert judge(processes=(GpuProcess(90210, GIB),), **own) is None
    assert judge(processes=(), **own) is None
    both = (GpuProcess(90210, GIB), GpuProcess(7, 2 * GIB))
    assert judge(processes=both, **own) == "1 other process on the GPU, holding 2.0 GiB"


def test_utilisation_and_memory_without_a_visible_process():
    assert judge(utilisation_percent=(40, 60)) == "GPU 50% utilised by something else before timing"
    assert judge(utilisation_percent=(5, 5)) is None
    assert judge(used_bytes=3 * GIB) == "3.0 GiB of GPU memory held by something else"
    assert judge(used_bytes=3 * GIB, own_bytes=5 * GIB // 2) is None


def test_nothing_is_busy_without_a_gpu():
    assert probe.busy_reason(None) is None


@pytest.mark.parametrize("found", [True, False])
def test_has_tokenizers_does_not_import_them(monkeypatch, found):
    monkeypatch.setattr(probe.importlib.util, "find_spec", lambda name: object() if found else None)
    assert probe.has_tokenizers() is found
