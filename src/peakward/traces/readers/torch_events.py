"""The events of a PyTorch trace, decoded with only the fields that the table needs, and their meaning.

A union tagged on `ph` decodes flows and counters into empty objects. On 8 MB of a trace of an A100 in torch
2.3 it reached 500 MB/s; with every flow as a full event it reached 350 MB/s. The categories are Kineto's
activity types; torch 1.x capitalised them and wrote Operator and Runtime.
"""

import re
from typing import Any, Literal, Union

import msgspec

from peakward.traces.table import NONE, Direction, GpuKind, HostKind

Id = int | str | float | None
"""A pid or tid."""
Number = int | str | float | None
"""ROCm writes some numbers as strings."""


def id_text(value: Id) -> str:
    """The text of a pid or tid; empty where there is none."""
    return "" if value is None else str(value)


Raw = msgspec.Raw
ABSENT = Raw(b"null")


class Arguments(
    msgspec.Struct,
    gc=False,
    rename={
        "n_bytes": "bytes",
        "sequence": "Sequence number",
        "forward_thread": "Fwd thread id",
        "dims": "Input Dims",
        "types": "Input type",
        "concrete": "Concrete Inputs",
        "graph": "graph id",
        "collective": "Collective name",
        "n_elements": "In msg nelems",
        "dtype": "dtype",
        "group": "Process Group Name",
        "members": "Process Group Ranks",
        "number": "Seq",
    },
):
    """The `args` of an event."""

    correlation: Number = NONE
    stream: Number = NONE
    device: Number = NONE
    n_bytes: Number = NONE
    sequence: Number = NONE
    forward_thread: Number = NONE
    graph: Number = NONE
    dims: Raw = ABSENT
    types: Raw = ABSENT
    concrete: Raw = ABSENT
    collective: Raw = ABSENT
    n_elements: Raw = ABSENT
    dtype: Raw = ABSENT
    group: Raw = ABSENT
    members: Raw = ABSENT
    number: Raw = ABSENT

    def texts(self) -> tuple[Raw, ...]:
        """The fields that are kept as they are written."""
        return (self.dims, self.types, self.concrete, *self.described())

    def described(self) -> tuple[Raw, ...]:
        """A collective, as torch's `record_param_comms` has it and Kineto gives it to the kernel. torch
        before 2.6 has no number."""
        return (
            self.collective,
            self.n_elements,
            self.dtype,
            self.group,
            self.members,
            self.number,
        )


class Complete(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An event with a start and a duration, in µs."""

    name: str
    ts: int | float
    dur: int | float = 0
    """0 without one: an event that was still open at the end of the recording counts as an instant."""
    cat: str | None = None
    pid: Id = None
    tid: Id = None
    args: Arguments | None = None


class CompleteAsText(Complete, gc=False, tag_field="ph", tag="X"):
    """A `Complete` event with its times as written."""

    ts: Raw  # type: ignore[assignment]
    dur: Raw = Raw(b"0")  # type: ignore[assignment]


class Begin(msgspec.Struct, gc=False, tag_field="ph", tag="B"):
    """A start whose end is a separate event."""

    name: str
    ts: Raw
    cat: str | None = None
    pid: Id = None
    tid: Id = None
    args: Arguments | None = None


class End(msgspec.Struct, gc=False, tag_field="ph", tag="E"):
    """The end of the last event that began on its thread."""

    ts: Raw
    pid: Id = None
    tid: Id = None


_TEXTS = (
    *("dims", "types", "concrete"),
    *("collective", "n_elements", "dtype", "group", "members", "number"),
)


def on_its_own(half: Begin | End) -> Begin | End:
    """The event without a reference to the text of its whole piece."""
    half.ts = half.ts.copy()
    if isinstance(half, Begin) and half.args is not None:
        kept = (each if each is ABSENT else each.copy() for each in half.args.texts())
        for name, text in zip(_TEXTS, kept, strict=True):
            setattr(half.args, name, text)
    return half


class About(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """The name of a thread or process, and other metadata."""

    name: str
    pid: Id = None
    tid: Id = None
    args: Raw = ABSENT


class ThreadName(msgspec.Struct, gc=False):
    """The `args` of an `About` called thread_name."""

    name: str


Event = Complete | Begin | End | About
_LEFT_OUT = tuple(
    msgspec.defstruct(f"Skipped{number}", [], tag_field="ph", tag=letter, gc=False)
    for number, letter in enumerate("stfiIRPCbneSTpFNODcvVa")
)
"""Every other letter of the Trace Event Format: flows, instants, counters, asynchronous events, objects,
clocks and memory dumps."""
_Decoded: Any = Union[(Complete, Begin, End, About, *_LEFT_OUT)]
_DecodedWithText: Any = Union[(CompleteAsText, Begin, End, About, *_LEFT_OUT)]
EVENTS: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[_Decoded])
EVENTS_WITH_TEXT: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[_DecodedWithText])
EVENT_WITH_TEXT: msgspec.json.Decoder[Event] = msgspec.json.Decoder(_DecodedWithText)
TEXTS = msgspec.json.Decoder(list[Raw])
_GPU = {
    "kernel": GpuKind.KERNEL,
    "concurrent_kernel": GpuKind.KERNEL,
    "gpu_memcpy": GpuKind.COPY,
    "memcpy": GpuKind.COPY,
    "gpu_memset": GpuKind.SET,
    "memset": GpuKind.SET,
}
_HOST = {
    "cpu_op": HostKind.OP,
    "operator": HostKind.OP,
    "runtime": HostKind.CALL,
    "driver": HostKind.CALL,
    "user_annotation": HostKind.RANGE,
    "python_function": HostKind.PYTHON,
    "overhead": HostKind.OVERHEAD,
}
_SILENT = frozenset(
    {
        "trace",
        "gpu_user_annotation",
        "cuda_sync",
        "cuda_event",
        "cuda_profiler_range",
        "external_correlation",
        "cpu_instant_event",
        "ac2g",
        "fwdbwd",
        "async_cpu_to_gpu",
    }
)
"""Neither work nor host activity: spans of the profiler, ranges and waits that it projects onto a stream,
links between events."""
_FOREIGN = (
    (re.compile(r"hpu_"), "Intel Gaudi (HPU)"),
    (re.compile(r"xpu_"), "an Intel GPU (XPU)"),
    (re.compile(r"mtia_"), "Meta's MTIA"),
    (re.compile(r"(?:async_)?npu|enqueue$|dequeue$|async_task_queue$"), "Ascend (NPU)"),
    (re.compile(r"privateuse1_"), "an accelerator outside torch (PrivateUse1)"),
)
"""Beginnings of categories from accelerators of other vendors than NVIDIA and AMD. Ascend's are those of
torch_npu, the others Kineto's."""
_FOREIGN_OPERATORS = {
    "npu::": "Ascend (NPU)",
    "hpu::": "Intel Gaudi (HPU)",
    "xpu::": "an Intel GPU (XPU)",
    "mtia::": "Meta's MTIA",
    "xla::": "a TPU (XLA)",
    "mlu::": "Cambricon (MLU)",
    "torch_mlu::": "Cambricon (MLU)",
    "musa::": "Moore Threads (MUSA)",
}
"""Namespaces of their operators."""
_FOREIGN_DEVICES = (
    (re.compile(r"Ascend|CANN$"), "Ascend (NPU)"),
    (re.compile(r"(?:.* )?(?:Gaudi|Habana|HL-\d)"), "Intel Gaudi (HPU)"),
    (re.compile(r"Intel\(R\) .*(?:GPU|Graphics)"), "an Intel GPU (XPU)"),
    (re.compile(r"MTIA\b"), "Meta's MTIA"),
    (re.compile(r"TPU\b"), "a TPU (XLA)"),
    (re.compile(r"MLU\d"), "Cambricon (MLU)"),
    (re.compile(r"MTT "), "Moore Threads (MUSA)"),
)
"""Names of the devices themselves, and of the processes that stand for them."""
_DIRECTIONS = {
    "htod": Direction.HOST_TO_DEVICE,
    "hosttodevice": Direction.HOST_TO_DEVICE,
    "dtoh": Direction.DEVICE_TO_HOST,
    "devicetohost": Direction.DEVICE_TO_HOST,
    "dtod": Direction.DEVICE_TO_DEVICE,
    "devicetodevice": Direction.DEVICE_TO_DEVICE,
    "ptop": Direction.PEER,
    "peertopeer": Direction.PEER,
    "htoh": Direction.HOST_TO_HOST,
    "hosttohost": Direction.HOST_TO_HOST,
}


def kind_of(category: str) -> GpuKind | HostKind | Literal["unknown"] | None:
    """The kind of an event of this category; None where it is rightly left out, "unknown" where the category
    is not known."""
    lower = category.lower()
    if lower in _GPU:
        return _GPU[lower]
    if lower in _HOST:
        return _HOST[lower]
    if lower.endswith(("_runtime", "_driver")):
        return HostKind.CALL
    return None if lower in _SILENT else "unknown"


def direction_of(name: str) -> Direction:
    """The direction of a copy: "Memcpy HtoD (Pageable -> Device)", HIP's "CopyHostToDevice"."""
    squeezed = name.lower().replace("_", "")
    for sign, direction in _DIRECTIONS.items():
        if sign in squeezed:
            return direction
    return Direction.UNKNOWN


def foreign_category(category: str) -> str | None:
    """The unsupported accelerator that has events of this category, or None."""
    lower = category.lower()
    return next((maker for begin, maker in _FOREIGN if begin.match(lower)), None)


def foreign_operator(name: str) -> str | None:
    """The unsupported accelerator that has an operator of this name, or None."""
    return _FOREIGN_OPERATORS.get(name[: name.find("::") + 2])


def foreign_device(name: str) -> str | None:
    """The unsupported accelerator with this device name, or with this name for its process, or None."""
    return next((maker for begin, maker in _FOREIGN_DEVICES if begin.match(name)), None)
