"""The ways to compute attention that studies hold against one another, and where each can run."""

from typing import Literal, cast, get_args

import msgspec

from peakward.hardware.attention_backend import Backend, Inputs, named_backend
from peakward.records.case import Compile, DeviceType, OperatorAttention, OperatorCase, OperatorPass
from peakward.records.errors import PeakwardError
from peakward.studies.engine import Point, Row
from peakward.studies.setting import Setting

Precision = Literal["fp32", "bf16"]
PRECISIONS: dict[DeviceType, tuple[Precision, ...]] = {"cpu": ("fp32",), "cuda": ("fp32", "bf16")}
"""The precisions in which kernels of attention are studied, by type of device."""
TORCH_TYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16"}
OURS = ("flash", "flash-hopper")
GPU_BACKENDS = ("sdpa-cudnn", "sdpa-efficient")
HOPPER_HEADS = (64, 80, 96, 128)
"""The head sizes of the implementation `hopper` of `kernels.flash_attention`."""


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to compute attention."""

    name: str
    attention: OperatorAttention
    compile: Compile = "none"
    precision: Literal["tf32"] | None = None
    """In place of fp32; None: the case's own."""


NAIVE = Arm(name="naive", attention="naive")
COMPILED = Arm(name="compiled", attention="naive", compile="default")
COMPILED_TF32 = Arm(name="compiled, tf32", attention="naive", compile="default", precision="tf32")
SDPA = Arm(name="sdpa", attention="sdpa")
BACKENDS = (
    Arm(name="sdpa-cudnn", attention="sdpa-cudnn"),
    Arm(name="sdpa-flash", attention="sdpa-flash"),
    Arm(name="sdpa-efficient", attention="sdpa-efficient"),
    Arm(name="sdpa-math", attention="sdpa-math"),
)
FLEX = Arm(name="flex", attention="flex")
FLASH = Arm(name="flash", attention="flash")
FLASH_HOPPER = Arm(name="flash-hopper", attention="flash-hopper")
ON_GPU = (NAIVE, COMPILED, COMPILED_TF32, SDPA, *BACKENDS, FLEX, FLASH, FLASH_HOPPER)
ON_CPU = (NAIVE, COMPILED, SDPA, FLEX, FLASH, FLASH_HOPPER)
"""The arms that a CPU's grid has, within a minute: there torch chooses among a flash backend and math."""


def every_arm(setting: Setting) -> tuple[Arm, ...]:
    """All ways, in the order of the tables; on a CPU those that `ON_CPU` names."""
    return ON_CPU if setting.device == "cpu" else ON_GPU


def studied(setting: Setting) -> tuple[Precision, ...]:
    """The user's precisions, of those that there are; all where none of these was asked for."""
    own = PRECISIONS[setting.device]
    return tuple(each for each in own if each in setting.scope.precisions) or own


class Products(msgspec.Struct, frozen=True, kw_only=True):
    """The products that a kernel runs in place of those of the case's type."""

    compute_type: str
    n_parts: int = 1
    """How many of them one product of the case's type takes."""


_IN_FP32_ON_A_GPU = {
    "naive": Products(compute_type="fp32"),
    "sdpa-math": Products(compute_type="fp32"),
    "flex": Products(compute_type="fp32"),
    "flash": Products(compute_type="bf16", n_parts=6),
    "sdpa-efficient": Products(compute_type="tf32", n_parts=3),
}
"""The products of attention in fp32 on a GPU: torch's matmul and FlexAttention use no tensor cores unless
tf32 is allowed, our kernel takes `bf16x6` (its settings), and torch's memory-efficient kernel CUTLASS's
OpMultiplyAddFastF32. What torch chooses (sdpa), and what Inductor makes of the naive formula, is not
recorded."""


def products(found: OperatorCase) -> Products | None:
    """Returns how the case's products are computed; None where nothing tells."""
    if found.device == "cpu" or found.precision != "fp32":
        return Products(compute_type=found.precision)
    if found.compile != "none":
        return None
    return _IN_FP32_ON_A_GPU.get(found.attention)


class Head(Point[OperatorCase], frozen=True, kw_only=True):
    """An arm, which is its name, at one size and pass."""

    arm: Arm
    precision: Precision
    """The inputs'."""

    @property
    def where(self) -> str:
        """For a title or a sentence: "fp32, head dim 64"."""
        return f"{self.precision}, head dim {self.case.head_dim}"


def seq_len(row: Row[Head]) -> int:
    """The case's."""
    return row.point.case.seq_len


def head(
    arm: Arm,
    precision: Precision,
    pass_: OperatorPass,
    setting: Setting,
    *,
    batch_size: int,
    seq_len: int,
    head_dim: int,
) -> Head:
    """One head of that attention, with why it cannot run on this machine."""
    case = OperatorCase(
        batch_size=batch_size,
        n_heads=1,
        seq_len=seq_len,
        head_dim=head_dim,
        pass_=pass_,
        precision=arm.precision or precision,
        attention=arm.attention,
        compile=arm.compile,
        device=setting.device,
    )
    return Head(
        case=case,
        protocol=setting.protocol(phases=False),
        name=arm.name,
        absent=obstacle(case, setting),
        arm=arm,
        precision=precision,
    )


def obstacle(found: OperatorCase, setting: Setting) -> str | None:
    """Why the case cannot run on this machine; None where it can, as far as is known beforehand."""
    name, capability = found.attention, setting.compute_capability or (9, 0)
    on_cpu, young = setting.device == "cpu", capability >= (8, 0)
    compiles = (found.compile != "none" or name == "flex") and not setting.has_compiler
    hopper = name == "flash-hopper"
    reasons = (
        (compiles, f"{name} compiled needs a C++ compiler on the PATH"),
        (on_cpu and name in OURS, f"{name} is a GPU's kernel, and does not run on a CPU"),
        (on_cpu and name in GPU_BACKENDS, f"torch has {name} on a GPU alone"),
        (on_cpu and found.precision == "tf32", "a CPU has no tf32"),
        (
            on_cpu and name == "flex" and found.pass_ != "forward",
            "FlexAttention has no backward pass on a CPU",
        ),
        (found.precision == "tf32" and not young, "tf32 needs a GPU of compute capability 8.0"),
        (name == "flash" and not young, "flash needs a GPU of compute capability 8.0"),
        (
            hopper and found.precision != "bf16",
            f"flash-hopper needs a type of 16 bits, got {found.precision}",
        ),
        (
            hopper and found.head_dim not in HOPPER_HEADS,
            f"flash-hopper needs heads of 64, 80, 96 or 128, got {found.head_dim}",
        ),
        (
            hopper and capability[0] != 9,
            f"flash-hopper needs compute capability 9, got {capability[0]}",
        ),
    )
    own = next((reason for holds, reason in reasons if holds), None)
    return own if own is not None or on_cpu else _obstacle_of_torch(found, capability)


def _obstacle_of_torch(found: OperatorCase, capability: tuple[int, int]) -> str | None:
    """Returns why torch's own rules refuse the case, or None; a case that slips through meets them when it
    runs."""
    prefix, _, backend = found.attention.partition("-")
    if prefix != "sdpa" or backend not in get_args(Backend):
        return None
    given = Inputs(
        dtype=TORCH_TYPES[found.precision],
        head_dim=found.head_dim,
        masked=False,
        grouped=False,
        differentiated=found.pass_ != "forward",
        n_keys=found.seq_len,
        compute_capability=capability,
    )
    try:
        named_backend(cast(Backend, backend), given)
    except PeakwardError as refusal:
        return str(refusal).partition(": use ")[0]
    return None
