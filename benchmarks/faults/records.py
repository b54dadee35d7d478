"""What `planted_faults` runs, and what it writes down."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from peakward.diagnose.diagnosis_input import DiagnosisInput
from peakward.hardware import devices
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.site import site
from peakward.records.case import DeviceType, ModelCase, ModuleCase
from peakward.records.finding import Abstention
from peakward.records.loop import LoopTimes
from peakward.records.measurement import Environment, Measurement
from peakward.records.memory import CaseMemory
from peakward.records.profile import Profile

if TYPE_CHECKING:
    from faults.lab import Lab

Needs = Literal["any", "cpu", "cuda", "two GPUs"]
"""What a program can run on."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules may see of a program that was run: the records of `diagnose.diagnosis_input`."""

    case: ModelCase | None = None
    module: ModuleCase | None = None
    measurement: Measurement | None = None
    profile: Profile | None = None
    n_steps: int | None = None
    memory: CaseMemory | None = None
    loop: LoopTimes | None = None
    device: str | None = None
    """Key in the catalogue; None of a CPU, and of what is not catalogued."""
    step_s: float | None = None
    """The median of the program's own steps without a profiler; None where it did not run."""

    def diagnosis_input(self, subject: str) -> DiagnosisInput:
        """As `peakward run`, `peakward trace` and `pw.watch` put them together."""
        here = None if self.device is None else site(devices.device(self.device))
        told = self.case is not None and self.case.device == "cuda" and here is not None
        return DiagnosisInput(
            subject=subject,
            case=self.case,
            module=self.module,
            measurement=self.measurement,
            profile=self.profile,
            n_steps=self.n_steps,
            memory=self.memory,
            loop=self.loop,
            site=here,
            forecast=forecast(self.case, here) if told and self.case and here else None,
        )


class Fault(NamedTuple):
    """A program with a known fault, in several strengths; 0 is the program without it."""

    code: str
    """Of the rule that is to find it."""
    name: str
    unit: str
    """What a strength counts."""
    strengths: tuple[float, ...]
    """Ascending, without 0."""
    observe: Callable[["Lab", float], Seen]
    needs: Needs = "cuda"


class Clean(NamedTuple):
    """A program in which nothing is to be found."""

    name: str
    observe: Callable[["Lab"], Seen]
    needs: Needs = "any"


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """One program, run and seen."""

    program: str
    planted: str | None
    """The code of its fault; None of a clean program."""
    strength: float = 0.0
    unit: str = ""
    seen: Seen = Seen()
    failed: str | None = None
    """Why there is nothing to judge."""

    @property
    def label(self) -> str:
        """In one line."""
        if self.planted is None:
            return self.program
        return f"{self.program}, {f'{self.strength:g} {self.unit}' if self.strength else 'without'}"


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A program that was not run."""

    program: str
    planted: str | None
    reason: str


OF_THE_MACHINE = ("DEV001",)
"""What rules say of the machine by its own sensors, whatever program runs there: on an H100 at its power
cap well configured decoders ran 3 to 4% slower at their end than at their beginning."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules said of one program."""

    program: str
    label: str
    planted: str | None
    strength: float
    cost_share: float | None
    """Of its step the time that the fault costs: 1 less the step without it over the step with it,
    both unprofiled. None without a fault, and where it is not time that it costs."""
    found: tuple[str, ...]
    """Codes in order of rank."""
    abstentions: tuple[Abstention, ...]
    """Rules that could not judge, with the inputs that they lacked."""
    rank: int | None
    """Of the planted finding, from 1; None where it was not found."""

    @property
    def missing(self) -> tuple[str, ...]:
        """The inputs for want of which the planted fault's rule could not judge; empty where it could."""
        return next((each.missing for each in self.abstentions if each.code == self.planted), ())

    @property
    def alarms(self) -> tuple[str, ...]:
        """Findings where there is no fault: all of a clean program's but those of the machine; of one
        that a fault is planted in elsewhere, its own rule's."""
        if self.planted is None:
            return tuple(each for each in self.found if each not in OF_THE_MACHINE)
        return () if self.strength else tuple(each for each in self.found if each == self.planted)


class Recall(msgspec.Struct, frozen=True, kw_only=True):
    """How one rule did, over the planted faults that its rule could judge."""

    code: str
    n: int
    """Planted that cost enough to count (`judge.COUNTS`), and could be judged."""
    n_found: int
    n_first: int
    """Found in the first place."""
    n_faint: int
    """Planted that cost too little to count."""
    n_faint_found: int
    n_abstained: int


class Planted(msgspec.Struct, frozen=True, kw_only=True):
    """The result file."""

    device: DeviceType
    environment: Environment
    command: str
    ran: tuple[Ran, ...]
    skipped: tuple[Skipped, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    recall: tuple[Recall, ...] = ()
