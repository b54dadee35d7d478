"""Layouts of one training step, timed on the ranks of a job: each by itself, then several in turns.

An arm of one rank runs on the first one while the others wait on the host, so that nothing of theirs is on
its device, or on each of them at once without a word between them. All ranks take as many steps as the
request says: none may decide that by its own clock. An arm is built once where memory holds those that it
takes turns with: its first run, which is not in turns, tells its memory, less what the others hold meanwhile.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.profiler import ProfilerActivity, profile

from peakward.lab.levers import precision
from peakward.lab.measure.clock import clock_for
from peakward.lab.measure.profile import write
from peakward.lab.measure.timer import collector_paused
from peakward.lab.parallel import ranks, traffic
from peakward.lab.parallel.ranks import AXES, Rank
from peakward.lab.parallel.step import (
    Batch,
    NotFiniteError,
    ParallelStep,
    captured,
    expect_finite,
)
from peakward.lab.parallel.subjects import n_unused, subject
from peakward.levers import catalogue
from peakward.records.case import ModuleCase
from peakward.records.errors import PeakwardError
from peakward.records.layout import BUCKETED, SHARDING, Layout
from peakward.records.parallel import Arm, ArmRun, ArmsRequest, RankUse

Tell = Callable[[int, str], None]
LEFT_BYTES = 256 * 2**20
"""Arms that have gone may leave so much to libraries, as cuBLAS's workspaces. Where they leave more, the
memory of the next is not told: on four H100s the gradients of a DistributedDataParallel of `xl` (3.7 GiB)
went only when the next one was built, whose peak then seemed as much lower."""
N_PROFILED = 6
"""Steps that are profiled one by one, of each layout: each rank's own work is compared over them."""


def measure(rank: Rank, arguments: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """The ranks' part of a request: `runs` of this rank in order, each an `ArmRun`."""
    request = msgspec.convert(arguments, ArmsRequest)
    bench = _Bench(rank, request, tell)
    with catalogue.around(request.case.configuration):
        for turns in request.turns:
            bench.in_turns(turns)
        for arm in request.arms:
            if request.accounts or request.trace_folder is not None or not bench.is_known(arm):
                with bench.resident(arm):
                    if request.trace_folder is not None:
                        bench.trace(arm, Path(request.trace_folder))
                    if request.accounts:
                        bench.account(arm)
    return {
        "runs": [msgspec.to_builtins(each) for each in bench.runs],
        "backend": dist.get_backend(),
        "n_parameters": bench.n_parameters,
    }


class _Bench:
    """The arms of a request on this rank, built when they are needed."""

    def __init__(self, rank: Rank, request: ArmsRequest, tell: Tell) -> None:
        self._rank, self._request, self._tell = rank, request, tell
        self._host = dist.new_group(backend="gloo")
        # Every rank makes every mesh, as torch asks.
        self._alone = [
            DeviceMesh(rank.device.type, [[[number]]], mesh_dim_names=AXES)
            for number in range(rank.n_ranks)
        ][rank.number]
        self._meshes: dict[tuple[int, int, int], DeviceMesh] = {}
        self._n_told = 0
        self.runs: list[ArmRun] = []
        self._steps: dict[str, Callable[[], Tensor | None]] = {}
        self._failed: dict[str, str] = {}
        self._held: dict[str, tuple[ParallelStep, Batch]] = {}
        self._known: set[str] = set()
        self._n_unused: dict[str, int] = {}
        self._built_bytes = 0
        self._resident_bytes: dict[str, int] = {}
        self.n_parameters: int | None = None
        """The parameters of the whole model, counted where one was built."""
        # Arms of one type share their blocks' compiled code; torch gives up after eight of one function.
        torch._dynamo.config.recompile_limit = 64

    def is_known(self, arm: Arm) -> bool:
        """Whether it was timed by itself, or failed."""
        return arm.name in self._known

    def in_turns(self, names: tuple[str, ...]) -> None:
        """A B C C B A A B C …: every second round is in reverse."""
        arms = {each.name: each for each in self._request.arms}
        rounds = [names[:: -1 if at % 2 else 1] for at in range(self._request.n_rounds)]
        with ExitStack() as held:
            if self._request.all_resident:
                for name in names:
                    held.enter_context(self.resident(arms[name]))
            for name, again in groupby(chain.from_iterable(rounds)):
                with nullcontext() if self._request.all_resident else self.resident(arms[name]):
                    for _ in again:
                        self.run(arms[name], turns=names)

    @contextmanager
    def resident(self, arm: Arm) -> Iterator[None]:
        """Builds the arm, times it by itself where that is not done, and lets it go again."""
        self._say(f"building {arm.name}")
        self._meet()
        before_bytes = self._allocated_bytes()
        is_told = before_bytes <= sum(self._resident_bytes.values()) + LEFT_BYTES
        try:
            if self._takes_part(arm) and arm.name not in self._failed:
                with self._noting(arm):
                    self._steps[arm.name] = self._built(arm)
            self._built_bytes = self._allocated_bytes()
            self._resident_bytes[arm.name] = self._built_bytes - before_bytes
            if not self.is_known(arm):
                self.run(arm, others_bytes=before_bytes if is_told else None)
                self._resident_bytes[arm.name] = self._allocated_bytes() - before_bytes
                self._meet()
                self._known.add(arm.name)
                if arm.name in self._failed and self._takes_part(arm):
                    self.runs.append(ArmRun(arm=arm.name, failed=self._failed[arm.name]))
            yield
        finally:
            self._steps.pop(arm.name, None)
            self._held.pop(arm.name, None)
            self._resident_bytes.pop(arm.name, None)
            gc.collect()
            if self._rank.device.type == "cuda":
                torch.cuda.empty_cache()

    def run(
        self, arm: Arm, turns: tuple[str, ...] | None = None, others_bytes: int | None = None
    ) -> None:
        """Some steps that are not timed and then those that are; by itself where it is in no turns."""
        self._say(f"running {arm.name}")
        self._meet()
        step = self._steps.get(arm.name)
        if step is None or arm.name in self._failed:
            return
        request = self._request
        n_warmup, n_steps = request.n_settling, request.n_steps
        if turns is None:
            n_warmup, n_steps = request.n_warmup, request.n_solo_steps
        with self._noting(arm):
            run = self._timed(arm, step, n_warmup, n_steps)
            use = self._used(arm, others_bytes) if turns is None else RankUse()
            self.runs.append(
                msgspec.structs.replace(run, is_solo=turns is None, turns=turns, use=use)
            )

    def _timed(
        self,
        arm: Arm,
        step: Callable[[], Tensor | None],
        n_warmup: int,
        n_steps: int,
    ) -> ArmRun:
        on_gpu = self._rank.device.type == "cuda"
        clock = clock_for("cuda" if on_gpu else "cpu")
        clock.reserve(n_steps + 1)
        if arm.layout.captured:  # A replay allocates nothing: its memory was taken for the capture.
            torch.cuda.reset_peak_memory_stats()
        for at in range(n_warmup):
            self._say(f"running {arm.name}")
            loss = step()
            if loss is not None:
                expect_finite(loss, at + 1)
        with collector_paused():
            if on_gpu:
                torch.cuda.synchronize()
            if on_gpu and not arm.layout.captured:
                torch.cuda.reset_peak_memory_stats()
            clock.mark(0)
            for at in range(n_steps):
                self._say(f"running {arm.name}")  # A step that is slow is no hung one.
                loss = step()
                clock.mark(at + 1)
            clock_mhz, power_w = _sensed() if on_gpu else (None, None)
            clock.wait(n_steps)
        if loss is not None:
            expect_finite(loss, n_warmup + n_steps)
        return ArmRun(
            arm=arm.name,
            steps_s=tuple(clock.between_s(at, at + 1) for at in range(n_steps)),
            loss=None if loss is None else float(loss),
            sm_clock_mhz=clock_mhz,
            power_w=power_w,
        )

    def _used(self, arm: Arm, others_bytes: int | None) -> RankUse:
        held, unused = self._held[arm.name][0].bytes_held(), self._n_unused.get(arm.name, 0)
        if self._rank.device.type != "cuda" or others_bytes is None:
            return RankUse(held_bytes=held, n_unused=unused)
        return RankUse(
            n_unused=unused,
            built_bytes=self._built_bytes - others_bytes,
            between_bytes=self._allocated_bytes() - others_bytes,
            peak_bytes=torch.cuda.max_memory_allocated() - others_bytes,
            held_bytes=held,
        )

    def account(self, arm: Arm) -> None:
        """Adds to the resident arm's own run what a step of it sends, how much of that is hidden, and how
        long the rank itself works."""
        step = self._steps.get(arm.name)
        if step is None or arm.layout.n_ranks == 1 or arm.name in self._failed:
            return
        held, batch = self._held[arm.name]
        launched = partial(held.step, batch)  # Of a replay nothing is seen.
        at = next(at for at, each in enumerate(self.runs) if each.arm == arm.name and each.is_solo)
        use = msgspec.structs.replace(self.runs[at].use, sent=traffic.sent_by(launched))
        spans = []
        for _ in range(N_PROFILED):
            self._say(f"profiling {arm.name}")
            self._meet()
            spans.append(traffic.spans_of(step, self._rank.device))
        use = msgspec.structs.replace(use, own_s=tuple(one.step_s - one.exposed_s for one in spans))
        if self._rank.device.type == "cuda":
            use = msgspec.structs.replace(
                use,
                communication_s=fmean(one.communication_s for one in spans),
                exposed_s=fmean(one.exposed_s for one in spans),
                sm_clock_mhz=self.runs[at].sm_clock_mhz,
            )
        self.runs[at] = msgspec.structs.replace(self.runs[at], use=use)

    def trace(self, arm: Arm, folder: Path) -> None:
        """A trace of the resident arm's steps on this rank, `ARM-rankN.json.gz`."""
        step = self._steps.get(arm.name)
        if step is None:
            return
        on_gpu = self._rank.device.type == "cuda"
        cuda = [ProfilerActivity.CUDA] if on_gpu else []
        with profile(activities=[ProfilerActivity.CPU, *cuda], record_shapes=True) as running:
            for number in range(self._request.n_traced):
                with torch.profiler.record_function(f"ProfilerStep#{number}"):
                    step()
            if on_gpu:
                torch.cuda.synchronize()
        name = arm.name.replace(" ", "-")
        write(running, folder / f"{name}-rank{self._rank.number}.json.gz")

    def _built(self, arm: Arm) -> Callable[[], Tensor | None]:
        case, layout = self._request.case, arm.layout
        if layout.captured and self._rank.device.type != "cuda":
            raise PeakwardError(
                "expected GPUs for a step as one CUDA graph, got a CPU: leave the graph"
            )
        setting = case.configuration.precision
        sharded = layout.data in SHARDING
        types: dict[str, Any] = {}
        if sharded and setting in precision.AUTOCAST:
            types["compute_dtype"] = precision.AUTOCAST[setting]
        if sharded and arm.reduces_in_fp32:
            types["reduce_dtype"] = torch.float32
        fused = case.configuration.optimizer == "adamw-fused"
        make = partial(_optimizer, fused=fused, capturable=layout.captured)
        given = subject(case, layout, self._rank.device)
        self.n_parameters = sum(each.numel() for each in given.module.parameters())
        batch = given.batch(self._mesh(layout)["dp"].get_local_rank())
        if isinstance(case, ModuleCase) and layout.data in BUCKETED and layout.dp > 1:
            self._n_unused[arm.name] = unused = self._most(n_unused(given, batch))
            layout = msgspec.structs.replace(layout, find_unused=layout.find_unused or bool(unused))
        step = ParallelStep(
            given.module,
            layout,
            self._mesh(layout),
            optimizer=make,
            loss=given.loss,
            around=given.around,
            compiled=arm.compiled,
            **types,
        )
        self._held[arm.name] = step, batch
        delay = arm.delay_s if self._rank.number == arm.delayed_rank else 0.0
        called = captured(step) if layout.captured else step.step
        return partial(_step, called, batch, delay)

    def _mesh(self, layout: Layout) -> DeviceMesh:
        if layout.n_ranks == 1:
            return self._alone
        key = (layout.pp, layout.dp, layout.tp)
        if key not in self._meshes:
            self._meshes[key] = ranks.mesh(layout, self._rank)
        return self._meshes[key]

    def _takes_part(self, arm: Arm) -> bool:
        return arm.layout.n_ranks > 1 or arm.is_on_every_rank or self._rank.number == 0

    @contextmanager
    def _noting(self, arm: Arm) -> Iterator[None]:
        """An arm that is refused is left out from then on, as one of a single rank that fails. Any other
        failure ends the job: the other ranks may be in a collective that this one does not call."""
        try:
            yield
        except NotFiniteError:
            raise
        except (PeakwardError, RuntimeError, ValueError, NotImplementedError) as error:
            if arm.layout.n_ranks > 1 and not isinstance(error, PeakwardError):
                raise
            lines = str(error).strip().splitlines() or [""]
            kind = "" if isinstance(error, PeakwardError) else f"{type(error).__name__}: "
            self._failed[arm.name] = f"{kind}{lines[0]}"[:300]
            self._steps.pop(arm.name, None)
            self._held.pop(arm.name, None)

    def _meet(self) -> None:
        """All ranks wait on the host until each has come. An arm that failed on one is left out on all."""
        if self._rank.device.type == "cuda":
            torch.cuda.synchronize()
        found: list[dict[str, str] | None] = [None] * self._rank.n_ranks
        dist.all_gather_object(found, self._failed, group=self._host)
        for each in found:
            self._failed |= each or {}

    def _most(self, number: int) -> int:
        """The largest of all ranks' numbers."""
        found: list[int] = [0] * self._rank.n_ranks
        dist.all_gather_object(found, number, group=self._host)
        return max(found)

    def _allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated() if self._rank.device.type == "cuda" else 0

    def _say(self, where: str) -> None:
        self._n_told += 1
        self._tell(self._n_told, where)


def _optimizer(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, **options)


def _step(step: Callable[[Batch], Tensor | None], batch: Batch, delay_s: float) -> Tensor | None:
    if delay_s:
        _busy(batch[0].device, delay_s)
    return step(batch)


def _busy(device: torch.device, delay_s: float) -> None:
    """Keeps this rank's device, or its processor, from its step for a while."""
    import time

    if device.type == "cuda":
        torch.cuda._sleep(int(delay_s * 1.5e9))  # Cycles of a clock of about 1.5 GHz.
    else:
        time.sleep(delay_s)


def _sensed() -> tuple[float | None, float | None]:
    """The clock in MHz and the power in W of this rank's GPU while its queue is full."""
    found: list[float | None] = [None, None]
    with contextlib.suppress(Exception):
        found[0] = float(torch.cuda.clock_rate())
        found[1] = torch.cuda.power_draw() / 1e3
    return cast(tuple[float | None, float | None], tuple(found))
