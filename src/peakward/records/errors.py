"""The errors that a user is meant to read."""

from peakward.records.printable import printable


class PeakwardError(Exception):
    """Input that cannot be served: one line, "expected …, got …", then what to do.

    The command line prints the message without a traceback and exits with `exit_code`. It quotes what it
    got, so that it is made printable here.
    """

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(printable(message))
        self.exit_code = exit_code


class SourceError(PeakwardError):
    """The source of a module is not there, or no longer as it was described: of the module itself it says
    nothing."""


class OutOfTimeError(PeakwardError):
    """What was asked did not end while there was time for it; nothing of it is stored."""
