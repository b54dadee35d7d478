"""A trace with all its analyses: the result of `pw.trace`."""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from peakward.records.device import Accelerator, Device, Vendor
from peakward.records.errors import PeakwardError
from peakward.records.profile import (
    Breakdown,
    Collective,
    CriticalPath,
    Idle,
    Job,
    KernelGroup,
    LaunchDelay,
    OperatorRate,
    Profile,
    RangeWork,
    Transfers,
    Waiting,
    WorkPhase,
)
from peakward.records.result import Result
from peakward.traces import ranks
from peakward.traces.breakdown import breakdown, collectives, transfers, whole_ns
from peakward.traces.calls import host_calls
from peakward.traces.category_rules import Category
from peakward.traces.collectives import RankTrace
from peakward.traces.critical_path import critical_path
from peakward.traces.grouping import by_name, by_phase, by_phase_and_category, by_phase_and_name
from peakward.traces.host_work import (
    host_breakdown,
    host_rank,
    is_of_host,
    operator_rows,
    with_host_work,
)
from peakward.traces.idle import idle
from peakward.traces.kernel_names import short_name
from peakward.traces.launches import launch_rows
from peakward.traces.origins import (
    REHEARSAL,
    Origins,
    evidence,
    incomplete,
    launched,
    without_rehearsal,
)
from peakward.traces.phase_names import PhaseCode
from peakward.traces.phases import Phases, phases
from peakward.traces.range_work import range_work
from peakward.traces.ranges import named_range
from peakward.traces.rates import operator_rates
from peakward.traces.reading import read
from peakward.traces.row_categories import CATEGORIES, row_categories
from peakward.traces.step_spans import Spans, begun_in_steps, n_steps, steps
from peakward.traces.table import Codes, GpuKind, HostKind, Indices, TraceTable, restricted
from peakward.traces.waiting import launch_delays, waiting


class Trace(Result):
    """One trace. Each analysis is computed when it is first requested.

    `table` holds its columns, for questions that no method answers.
    """

    def __init__(self, table: TraceTable, spans: Spans | None = None) -> None:
        self.table = table
        self.spans = spans
        """The spans of its marked steps, by device; None: the spans of all its work."""
        self.is_of_host = is_of_host(table)
        """Whether the work is the host's operators (`host_work`), because there is no GPU work."""
        self.device: Device | None = None
        """The model of its GPUs, once a caller with the catalogue has set it."""

    def __repr__(self) -> str:
        known = "" if self.device is None else f", device={self.device.key!r}"
        return f"Trace({self.table.source!r}, {len(self.table.gpu):,} pieces of work{known})"

    @classmethod
    def open(cls, path: Path) -> "Trace":
        """Read a file: PyTorch profiler (.json, .json.gz) or Nsight Systems (.sqlite, .nsys-rep).

        Without GPU work in it, the trace is of the host's operators and their self times.

        Raises:
            PeakwardError: it is none of these, damaged, or larger than memory allows.
        """
        return cls.of(with_host_work(read(path)))

    @classmethod
    def of(cls, table: TraceTable) -> "Trace":
        """The trace of a whole table, or of its marked steps. Work left over from earlier steps, and work of
        a rehearsal, is not part of the steps."""
        rehearsed = without_rehearsal(table)
        shown, origins = (table, None) if rehearsed is None else rehearsed
        found = steps(shown)
        trace = cls(shown) if found is None else cls(found.table, found.spans)
        if origins is not None:
            trace.origins = origins if found is None else origins.of(found.rows)
        return trace

    @cached_property
    def launches(self) -> Indices:
        """For each GPU row the position in `table.host` of the call that launched it, or NONE."""
        return operator_rows(self.table) if self.is_of_host else launch_rows(self.table)

    @cached_property
    def origins(self) -> Origins:
        """For each GPU row the call that tells its phase, range and operator: its launch, or for a graph's
        work the rehearsal's call, where the trace has one."""
        return launched(self.launches)

    @cached_property
    def categories(self) -> Codes:
        """For each GPU row the position of its category in CATEGORIES."""
        return row_categories(self.table)

    @cached_property
    def communication(self) -> NDArray[np.bool_]:
        """Mask of the GPU rows that are communication kernels. It is empty for a host trace, whose rows do
        not show when they ran."""
        found: NDArray[np.bool_] = self.categories == CATEGORIES.index(Category.COMMUNICATION)
        return np.zeros_like(found) if self.is_of_host else found

    @cached_property
    def accelerator(self) -> Accelerator:
        """The kind of its GPUs."""
        return accelerator(self.table)

    @cached_property
    def phases(self) -> Phases:
        """The phase of each GPU row, and its evidence."""
        return phases(self.table, self.origins.calls)

    @cached_property
    def _host_rows(self) -> NDArray[np.bool_] | None:
        """Mask of the host rows in the steps; None: all."""
        return None if self.spans is None else begun_in_steps(self.table)

    def breakdown(self) -> Breakdown:
        """Busy and idle time, compute, communication and memory, by device."""
        if self.is_of_host:
            return host_breakdown(self.table, None if self.spans is None else whole_ns(self.spans))
        return breakdown(self.table, self.communication, self.spans)

    def overlap(self) -> tuple[Collective, ...]:
        """Collectives by kernel, and their exposed time."""
        found = collectives(self.table, self.communication)
        return tuple(msgspec.structs.replace(each, name=short_name(each.name)) for each in found)

    def idle(self) -> Idle:
        """Idle time by cause and device."""
        return idle(self.table, self.launches, self.spans)

    def kernels(self) -> tuple[KernelGroup, ...]:
        """GPU work by name, the longest total first."""
        return by_name(self.table, self.categories)

    def kernels_by_phase(self) -> tuple[KernelGroup, ...]:
        """GPU work by phase and name, the longest total first."""
        return by_phase_and_name(self.table, self.categories, self.phases.code)

    def copies(self) -> tuple[Transfers, ...]:
        """Copies by direction, and sets."""
        return transfers(self.table)

    def waits(self) -> tuple[Waiting, ...]:
        """The places where the host waited for the GPU, the longest total first."""
        return waiting(self.table, outside=REHEARSAL, among=self._host_rows)

    def launch_delays(self) -> tuple[LaunchDelay, ...]:
        """The delay from launch to start, and the host's lead, by device."""
        return launch_delays(self.table, self.launches, self.spans)

    def critical_path(self) -> CriticalPath:
        """The chain of work, on GPUs and host, that determined the total time."""
        return critical_path(self.table, self.launches, self.communication, self.spans)

    def operators(self, device: Device | None = None) -> tuple[OperatorRate, ...]:
        """FLOPs, bytes and rates of the operators with recorded shapes. With the device of the trace (by
        default `self.device`), also their share of its roof."""
        return operator_rates(self.table, self.origins, device or self.device)

    def ranges(self) -> tuple[RangeWork, ...]:
        """Work by Peakward's ranges of blocks, attention and its parts, forward and backward."""
        return range_work(self.table, self.origins.calls, self.categories)

    def select(self, *, phase: WorkPhase | None = None, range_name: str | None = None) -> "Trace":
        """The trace with only the GPU work of a phase, or of ranges of a name.

        Raises:
            PeakwardError: no range has that name.
        """
        rows = np.ones(len(self.table.gpu), dtype=bool)
        if phase is not None:
            rows &= self.phases.code == PhaseCode[phase.upper()]
        if range_name is not None:
            rows &= self._inside(range_name)
        part = Trace(restricted(self.table, rows))
        # Facts found by looking at the whole also hold for its part.
        part.phases = self.phases.of(rows)
        part.origins = self.origins.of(rows)
        part.device = self.device
        return part

    def _inside(self, range_name: str) -> NDArray[np.bool_]:
        """Mask of the work launched in the range, and of a graph's work that belongs to it."""
        found = named_range(self.table, self.launches, range_name)
        if not len(found.rows):
            raise PeakwardError(
                f"expected a range of the trace, got {range_name!r}: {self._some_ranges()}"
            )
        inside: NDArray[np.bool_] = found.inside | (
            named_range(self.table, self.origins.calls, range_name).inside
        )
        return inside

    def _some_ranges(self) -> str:
        host = self.table.host
        rows, n = np.unique(host.name[host.kind == HostKind.RANGE], return_counts=True)
        if not len(rows):
            return "it has none"
        most = [repr(self.table.names[name]) for name in rows[np.argsort(-n, kind="stable")][:5]]
        return f"it has {len(rows):,}, among them {', '.join(most)}"

    def profile(
        self,
        *,
        phase: WorkPhase | None = None,
        range_name: str | None = None,
        device: Device | None = None,
    ) -> Profile:
        """The complete analysis as a record; for a part, everything that a part can show.

        `device` is the device of the trace, for shares of its roof; by default `self.device`.
        """
        if phase is None and range_name is None:
            return self._profile(device)
        said = [f"the phase {phase}"] if phase is not None else []
        said += [f"ranges {range_name!r}"] if range_name is not None else []
        part = self.select(phase=phase, range_name=range_name)
        found = part._profile(device)
        return msgspec.structs.replace(found, selection=", ".join(said), idle=None, path=None)

    def _profile(self, device: Device | None) -> Profile:
        table, code = self.table, self.phases.code
        kernels = table.gpu.kind == GpuKind.KERNEL
        other = self.categories == CATEGORIES.index(Category.OTHER)
        kernel_ns = int(table.gpu.duration_ns[kernels].sum())
        return Profile(
            source=table.source,
            format=table.format,
            devices=tuple(dict.fromkeys(each.name for each in table.devices if each.name)),
            rank=None if table.job is None else table.job.rank,
            world_size=None if table.job is None else table.job.world_size,
            n_steps=n_steps(table) or None,
            selection=None,
            breakdown=self.breakdown(),
            phases=by_phase(table, code),
            categories=by_phase_and_category(table, self.categories, code),
            kernels=self.kernels_by_phase(),
            collectives=self.overlap(),
            idle=None if self.is_of_host else self.idle(),
            transfers=self.copies(),
            waits=() if self.is_of_host else self.waits(),
            delays=() if self.is_of_host else self.launch_delays(),
            path=self.critical_path() if len(table.gpu) and not self.is_of_host else None,
            operators=self.operators(device),
            evidence=evidence(table, self.phases, self.origins),
            unnamed_share=int(table.gpu.duration_ns[kernels & other].sum()) / max(kernel_ns, 1),
            incomplete=incomplete(table, self.launches, self.phases),
            ranges=self.ranges(),
            host=host_calls(table, self._host_rows),
            accelerator=None if self.is_of_host else self.accelerator,
        )


def compare(traces: Sequence[Trace]) -> Job:
    """The ranks of one job side by side: compute time, waiting time, and which rank came last.

    Raises:
        PeakwardError: two files of one rank, or of jobs of different sizes; files of which only some say
            their rank; one without GPU work among others.
    """
    of_host = [each for each in traces if each.is_of_host]
    if of_host and len(of_host) < len(traces):
        raise PeakwardError(
            f"expected GPU work in each of several traces, got none in {of_host[0].table.source!r}: "
            "look at it alone"
        )
    found = ranks.compare([_as_rank(each) for each in traces])
    return msgspec.structs.replace(found, of_host=bool(of_host))


def _as_rank(trace: Trace) -> RankTrace:
    """Its work for a comparison with other ranks."""
    if not trace.is_of_host:
        return RankTrace(trace.table, trace.communication)
    rows = trace._host_rows
    every = np.ones(len(trace.table.host), dtype=np.bool_)
    return host_rank(trace.table, every if rows is None else rows)


def in_order(traces: Sequence[Trace]) -> list[Trace]:
    """The traces in the order of their ranks.

    Raises:
        PeakwardError: as `compare` does of ranks.
    """
    return [traces[at] for at in ranks.ordered([each.table for each in traces]).values()]


_OF_VENDOR: tuple[tuple[re.Pattern[str], Vendor], ...] = (
    (re.compile(r"AMD\b|Instinct|Radeon|gfx\d"), "amd"),
    (re.compile(r"NVIDIA\b|Tesla|GeForce|Quadro|GRID|RTX|[ABHLTV]\d+\b|GB?[12]00\b"), "nvidia"),
)
"""Beginnings of devices' names."""
_OF_CALL: tuple[tuple[re.Pattern[str], Vendor], ...] = (
    (re.compile(r"hip[A-Z]|hsa_"), "amd"),
    (re.compile(r"cuda[A-Z]|cu[A-Z]"), "nvidia"),
)
"""Beginnings of the names of calls into the driver."""


def accelerator(table: TraceTable) -> Accelerator:
    """The kind of GPU by its devices' names and properties and by the host's calls. With several kinds, only
    their common properties are set."""
    vendors = {_vendor(each.name or "", _OF_VENDOR) for each in table.devices} - {None}
    if not vendors:
        calls = np.unique(table.host.name[table.host.kind == HostKind.CALL])
        vendors = {_vendor(table.names[each], _OF_CALL) for each in calls} - {None}
    vendor = next(iter(vendors)) if len(vendors) == 1 else None
    stated = [each.compute_capability for each in table.devices]
    known = [each for each in stated if each is not None]
    if vendor != "nvidia" or not known or len(known) < len(stated):
        return Accelerator(vendor=vendor)
    return Accelerator(vendor=vendor, compute_capability=min(known))


def _vendor(name: str, known: tuple[tuple[re.Pattern[str], Vendor], ...]) -> Vendor | None:
    return next((vendor for begin, vendor in known if begin.match(name)), None)
