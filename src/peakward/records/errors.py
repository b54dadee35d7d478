"""The one error a user is meant to read."""


class PeakwardError(Exception):
    """Input that cannot be served: one line, "expected …, got …", then what to do.

    The command line prints the message without a traceback and exits with `exit_code`.
    """

    def __init__(self, message: str, *, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
