"""The setting that a study's plan depends on: the scope, and what this machine can do."""

from collections.abc import Iterable

import msgspec

from peakward.levers.catalogue import case_obstacle
from peakward.records.case import DeviceType, ModelCase, Precision
from peakward.records.measurement import Environment, Protocol
from peakward.studies.scope import Grid, Scope, grid

TIMED_S = {"small": 0.5, "corners": 1.0, "full": 5.0}
"""Timed seconds a case where the user sets none."""


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plans and tables are pure functions of this and of the measurements."""

    scope: Scope
    environment: Environment
    has_compiler: bool
    has_tokenizers: bool = False
    """Whether the package of byte-pair encodings is installed."""
    has_smollm2: bool = False
    """Whether the package of a small real model is installed."""
    has_torchao: bool = False
    """Whether torchao is installed."""
    n_gpus: int = 0
    """The visible GPUs."""

    @property
    def device(self) -> DeviceType:
        """Where every case of the study runs."""
        return "cuda" if self.environment.device_type == "cuda" else "cpu"

    @property
    def grid(self) -> Grid:
        """Sizes and sequence lengths of the scope."""
        return grid(self.scope)

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """The GPU's compute capability, (9, 0) for an H100 or H200; None on a CPU."""
        major, _, minor = (self.environment.compute_capability or "").partition(".")
        return (int(major), int(minor)) if minor else None

    def precision(self, *, on_gpu: Precision) -> Precision:
        """The precision of a study that has one: the user's first choice, else `on_gpu`; fp32 on a CPU."""
        if self.scope.precisions:
            return self.scope.precisions[0]
        return on_gpu if self.device == "cuda" else "fp32"

    def protocol(self, **fields: int | float | bool) -> Protocol:
        """A protocol bounded as the scope says; `fields` are the study's own needs, and prevail."""
        bounds: dict[str, int | float | bool] = {
            "max_timed_s": self.scope.max_timed_s or TIMED_S[self.scope.name]
        }
        if self.scope.timeout_s is not None:
            bounds["timeout_s"] = self.scope.timeout_s
        return msgspec.structs.replace(Protocol(), **(bounds | fields))

    def absent_ranks(self, n_ranks: int, device: DeviceType) -> str | None:
        """Why so many ranks cannot run here; None where they can. On a CPU they share its cores."""
        if device == "cpu" or self.n_gpus >= n_ranks:
            return None
        return f"needs {n_ranks} GPUs, here {'is' if self.n_gpus == 1 else 'are'} {self.n_gpus}"

    def obstacle(self, case: ModelCase) -> str | None:
        """Why a setting of the case cannot apply on this machine; None where all can."""
        return case_obstacle(
            case,
            compute_capability=self.compute_capability,
            has_compiler=self.has_compiler,
        )

    def refusals(self, cases: Iterable[ModelCase]) -> tuple[str, ...]:
        """Notes on why cases were left out, each reason once."""
        reasons = (self.obstacle(case) for case in cases)
        return tuple(
            dict.fromkeys(f"Not run here: {each}." for each in reasons if each is not None)
        )


def read_setting(environment: Environment, scope: Scope) -> Setting:
    """The setting of this machine."""
    from peakward.lab.measure import nvml, probe

    return Setting(
        scope=scope,
        environment=environment,
        has_compiler=probe.has_compiler(),
        has_tokenizers=probe.has_tokenizers(),
        has_smollm2=probe.has_smollm2(),
        has_torchao=probe.has_torchao(),
        n_gpus=len(nvml.visible_names()) if environment.device_type == "cuda" else 0,
    )
