"""Errors whose message is meant for the user."""

from peakward.records.printable import printable


class PeakwardError(Exception):
    """Input that Peakward cannot serve. The message is one line: "expected …, got …", then what to do.

    The command line prints the message without a traceback and exits with `exit_code`. The message quotes the
    input, so it is made printable here.
    """

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(printable(message))
        self.exit_code = exit_code


class SourceError(PeakwardError):
    """The source of a module is missing or has changed. The error says nothing about the module itself."""


class OutOfTimeError(PeakwardError):
    """The requested work did not end in the available time. Nothing of it is stored."""
