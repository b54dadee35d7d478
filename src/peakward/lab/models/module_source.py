"""Builds a user's module from its source: `py:package.module:factory`, or `hf:` and a configuration."""

from peakward.lab.models import python_source, source_files, transformers_source
from peakward.lab.models.given_module import GivenModule
from peakward.records.case import ModuleCase
from peakward.records.errors import PeakwardError, SourceError


def fingerprint(source: str) -> str:
    """The fingerprint of the files that the source consists of.

    Raises:
        PeakwardError: A file cannot be found, or read.
    """
    kind, _, name = source.partition(":")
    if kind == "hf":
        return transformers_source.fingerprint(name)
    return source_files.fingerprint(python_source.module_and_factory(name)[0])


def build(case: ModuleCase) -> GivenModule:
    """The module, with its inputs.

    Raises:
        SourceError: The source has changed since the case was made.
        PeakwardError: as the source's kind says.
    """
    kind, _, name = case.source.partition(":")
    if kind not in ("py", "hf"):
        raise PeakwardError(
            f"expected a module that can be built from its source, got {case.source}: it lived in another "
            "process; give it as py:package.module:factory"
        )
    now = fingerprint(case.source)
    if now != case.fingerprint:
        raise SourceError(
            f"expected {case.source} as it was described, fingerprint {case.fingerprint}, got {now}: its "
            "files have changed since; start again"
        )
    work = case.workload
    if kind == "hf":
        attention = case.configuration.attention
        return transformers_source.build(name, attention, device=case.device, seed=work.seed)
    return python_source.build(
        name,
        batch_size=work.batch_size,
        seq_len=work.seq_len,
        device=case.device,
        seed=work.seed,
    )
