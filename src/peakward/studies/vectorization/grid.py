"""The pieces of `vectorization`."""

from peakward.records.case import DeviceType, MicroCase, MicroPrecision
from peakward.studies.pieces import planned
from peakward.studies.readings import Planned
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting

LOOPS, NUMPY, TORCH = "python loops", "numpy", "torch"
LOOP_SIZES: dict[ScopeName, tuple[int, ...]] = {
    "small": (32, 64, 128),
    "corners": (32, 64, 128),
    "full": (32, 64, 128, 256),
}
"""256 takes about a second a product (CPython 3.11)."""
NUMPY_SIZES = (32, 64, 128, 256, 512, 1024, 2048)
TORCH_SIZES: dict[tuple[DeviceType, ScopeName], tuple[int, ...]] = {
    ("cpu", "small"): NUMPY_SIZES,
    ("cpu", "corners"): NUMPY_SIZES,
    ("cpu", "full"): NUMPY_SIZES,
    ("cuda", "small"): NUMPY_SIZES,
    ("cuda", "corners"): (*NUMPY_SIZES, 8192),
    ("cuda", "full"): (*NUMPY_SIZES, 4096, 8192),
}
TORCH_PRECISIONS: dict[DeviceType, tuple[MicroPrecision, ...]] = {
    "cpu": ("fp32",),
    "cuda": ("fp32", "tf32", "bf16"),
}


def plan(setting: Setting) -> tuple[Planned, ...]:
    """Loops and NumPy on the CPU, torch on the device, each at several sizes."""
    name = setting.scope.name
    cases = (
        *(_case(LOOPS, n, "fp64", "cpu") for n in LOOP_SIZES[name]),
        *(_case(NUMPY, n, "fp32", "cpu") for n in NUMPY_SIZES),
        *(
            _case(TORCH, n, precision, setting.device)
            for precision in TORCH_PRECISIONS[setting.device]
            for n in TORCH_SIZES[setting.device, name]
        ),
    )
    return tuple(planned(setting, cases))


def _case(piece: str, n: int, precision: MicroPrecision, device: DeviceType) -> MicroCase:
    return MicroCase(subject="matmul", piece=piece, sizes=(n,), precision=precision, device=device)
