"""Text, tokenizer and loader workers that a user asked for, checked once."""

from collections.abc import Iterable

from peakward.cli import values
from peakward.levers.workload import workers_obstacle
from peakward.records.case import Case, ModelCase
from peakward.records.data import Source
from peakward.records.errors import PeakwardError

MAX_WORKERS = 1024
"""Of what is read as a number; what is sensible here depends on the machine."""


def text(name: str) -> Source:
    """The text of `--data`.

    Raises:
        PeakwardError: neither a name nor a path of UTF-8 text, or a package that is not installed.
    """
    from peakward.lab.data import text

    return text.source(name)


def tokenizer(name: str) -> Source:
    """The tokenizer of `--tokenizer`.

    Raises:
        PeakwardError: neither a name nor a file.
    """
    from peakward.lab.data import tokenizer

    return tokenizer.source(name)


def workers(given: str, n_cores: int) -> tuple[int, ...]:
    """The numbers of `--workers`.

    Raises:
        PeakwardError: no whole number, or more than is sensible on so many cores.
    """
    found = []
    for item in values.split(given, "--workers"):
        n = values.whole(item, "--workers", low=0, high=MAX_WORKERS)
        reason = workers_obstacle(n, n_cores)
        if reason is not None:
            raise PeakwardError(reason)
        found.append(n)
    return tuple(found)


def refuse_unfit(cases: Iterable[Case]) -> None:
    """Tokenise what the cases will read, which is kept for them.

    Raises:
        PeakwardError: a tokenizer that is not installed or has more tokens than a model, or text
            shorter than a sequence.
    """
    from peakward.lab.data.tokens import prepare

    read = {
        (work.data.text, work.data.tokenizer, case.model.vocab_size, work.seq_len): work.data
        for case in cases
        if isinstance(case, ModelCase) and (work := case.workload).data is not None
    }
    for (_, _, vocab_size, seq_len), data in read.items():
        prepare(data, vocab_size=vocab_size, seq_len=seq_len)
