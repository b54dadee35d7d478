"""The best of a run as a patch of the user's own files: `patch`."""

from peakward.api import session
from peakward.records.errors import PeakwardError, quoted
from peakward.records.study import Study
from peakward.tune.patching import text_of


def patch(study: Study) -> str:
    """The best of a run as a unified diff of the user's files, for `patch -p1` or `git apply`.

    A factory's module gets plain lines of torch before it is returned; the patched files are imported and
    run beside the best before the diff is given. Where a call of `run`, `optimize` or `investigate` began the
    study, the lines stand in the place of that call, or behind it; the script is not run.

    Args:
        study: of a run; the working directory is the one that it was made in.

    Raises:
        PeakwardError: no gain was confirmed; the files have changed since, are not the user's, or are
            written in a way that no line can be added to; a factory's patched module computes something else.
    """
    if not isinstance(study, Study):
        raise PeakwardError(
            f"expected a study of a run, got {quoted(study)}: `pw.run` makes one, `pw.load` reads one"
        )
    session.expect_torch()
    return text_of(study)
