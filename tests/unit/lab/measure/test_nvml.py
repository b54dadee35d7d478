"""Which GPU is CUDA's first, and what a driver may or may not say."""

from types import SimpleNamespace

import pynvml
import pytest

from peakward.lab.measure import nvml
from peakward.records.errors import PeakwardError

UUIDS = ("GPU-8932f937-d72c", "GPU-8932ffff-0000", "GPU-1234abcd-9999")


@pytest.mark.parametrize(
    ("visible", "choice"),
    [
        (None, 0),
        ("", None),
        ("-1", None),
        ("NoDevFiles", None),
        ("2", 2),
        ("1,0", 1),
        ("3", None),
        (" 1 , 0", 1),
        ("GPU-1234", 2),
        ("GPU-8932", None),  # not unique: CUDA shows no device
        ("GPU-8932f9", 0),
        ("GPU-dead", None),
        ("MIG-5c9b2a1e-77aa", "MIG-5c9b2a1e-77aa"),
    ],
)
def test_choose_as_cuda_does(visible, choice):
    assert nvml.choose(visible, UUIDS) == choice


def test_choose_without_gpus():
    assert nvml.choose(None, ()) is None
    assert nvml.choose("0", ()) is None


@pytest.mark.parametrize("visible", ["MIG-GPU-8932f937/1/0", "cuda:0", "all"])
def test_choose_refuses_what_it_cannot_follow(visible):
    with pytest.raises(PeakwardError, match="expected CUDA_VISIBLE_DEVICES"):
        nvml.choose(visible, UUIDS)


def test_order_matters_only_where_gpus_differ():
    nvml.check_order("FASTEST_FIRST", {"H100"})
    nvml.check_order(None, {"H100", "T4"})
    nvml.check_order("PCI_BUS_ID", {"H100", "T4"})
    with pytest.raises(PeakwardError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        nvml.check_order("FASTEST_FIRST", {"H100", "T4"})


def test_names_as_bytes_or_text():
    assert nvml.text(b"NVIDIA H200") == nvml.text("NVIDIA H200") == "NVIDIA H200"


def test_query_gives_none_where_the_driver_refuses():
    def refuse(error):
        raise pynvml.NVMLError(error)

    assert nvml.query(refuse, pynvml.NVML_ERROR_NOT_SUPPORTED) is None
    assert nvml.query(refuse, pynvml.NVML_ERROR_NO_PERMISSION) is None
    assert nvml.query(lambda x: x + 1, 1) == 2


@pytest.fixture
def driver(monkeypatch):
    """Two GPUs, the second in MIG mode with one instance."""
    said = SimpleNamespace(
        mig={"a": 0, "b": 1}, uuids={"a": b"GPU-aa", "b": "GPU-bb", "m": "MIG-1"}
    )

    def by_uuid(uuid):
        found = [handle for handle, each in said.uuids.items() if nvml.text(each) == uuid.decode()]
        if not found:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found[0]

    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": "ab".__getitem__,
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetUUID": said.uuids.__getitem__,
        "nvmlDeviceGetName": lambda handle: b"NVIDIA H200",
        "nvmlDeviceGetMigMode": lambda handle: (said.mig[handle], 0),
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": {"m": "b"}.__getitem__,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    return said


@pytest.mark.parametrize(
    ("visible", "gpu"),
    [
        (None, ("a", "a")),
        ("0", ("a", "a")),
        ("GPU-aa", ("a", "a")),
        ("MIG-1", ("m", "b")),
        ("-1", None),
    ],
)
def test_visible_gpu(driver, monkeypatch, visible, gpu):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvml.visible_gpu() == (None if gpu is None else nvml.Gpu(*gpu))


@pytest.mark.parametrize(
    ("visible", "n"), [(None, 2), ("0", 1), ("GPU-bb,0", 2), ("1,7,0", 1), ("-1", 0)]
)
def test_names_of_visible_gpus_end_at_the_first_that_is_none(driver, monkeypatch, visible, n):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvml.visible_names() == ("NVIDIA H200",) * n


def test_a_gpu_in_mig_mode_must_be_named_by_instance(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(PeakwardError, match="expected a MIG instance to be named"):
        nvml.visible_gpu()


def test_an_unknown_uuid_is_refused(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-9")
    with pytest.raises(PeakwardError, match="MIG-9"):
        nvml.visible_gpu()


def test_no_driver_no_gpu(monkeypatch):
    def missing():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert nvml.visible_gpu() is None
    with pytest.raises(PeakwardError, match="GPU-aa"):
        nvml.gpu_of("GPU-aa")


def test_cuda_and_nvml_must_agree(driver):
    nvml.check_is(nvml.Gpu("a", "a"), "aa")
    nvml.check_is(nvml.Gpu("a", "a"), "GPU-aa")
    nvml.check_is(nvml.Gpu("m", "b"), "bb")  # how CUDA names an instance's UUID differs
    with pytest.raises(PeakwardError, match="expected CUDA's first device"):
        nvml.check_is(nvml.Gpu("a", "a"), "bb")


def test_processes(monkeypatch):
    listed = [SimpleNamespace(pid=7, usedGpuMemory=None), SimpleNamespace(pid=8, usedGpuMemory=5)]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: listed)
    found = nvml.processes(nvml.Gpu("a", "a"))
    assert found == (nvml.GpuProcess(7, None), nvml.GpuProcess(8, 5))


@pytest.mark.parametrize(("has_version_2", "used"), [(True, 4), (False, 6)])
def test_memory_without_the_driver_s_own_where_it_says(monkeypatch, has_version_2, used):
    def info(handle, version=None):
        if version is None:
            return SimpleNamespace(total=10, used=6)
        if not has_version_2:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(total=10, reserved=2, used=4)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", info)
    assert nvml.memory(nvml.Gpu("a", "a")) == nvml.DeviceMemory(total=10, used=used)
