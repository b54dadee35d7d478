"""What `--model` names beside shapes: a module of the user's, by its source."""

from peakward.records.case import (
    AS_WRITTEN,
    Configuration,
    DeviceType,
    ModuleCase,
    Workload,
)
from peakward.records.errors import PeakwardError

KINDS = ("py:", "hf:")


def is_source(name: str) -> bool:
    """Whether the name is a module's source: py:package.module:factory, or hf: and a configuration."""
    return name.startswith(KINDS)


def module_case(
    source: str,
    workload: Workload,
    *,
    configuration: Configuration = AS_WRITTEN,
    device: DeviceType,
    memory_limit_bytes: int | None = None,
) -> ModuleCase:
    """A pass of the module, as its source is now. Nothing is imported or run.

    Raises:
        PeakwardError: its configuration or transformers is not here, its file is no Python, or its name
            cannot be shown.
    """
    from peakward.lab.models.module_source import fingerprint

    if not source.isprintable():
        raise PeakwardError(
            f"expected a module's source that can stand in tables, got {source!r}: rename what it names"
        )
    return ModuleCase(
        source=source,
        fingerprint=fingerprint(source),
        workload=workload,
        configuration=configuration,
        device=device,
        memory_limit_bytes=memory_limit_bytes,
    )


def expect_shape(name: str) -> None:
    """Refuse a source where a shape is needed.

    Raises:
        PeakwardError: it is one.
    """
    if is_source(name):
        raise PeakwardError(
            f"expected the shape of a model, got the module {name}: `peakward run` and `peakward bench` "
            "measure modules, `pw.module_case` names them, `pw.predict(module, device)` predicts them"
        )
