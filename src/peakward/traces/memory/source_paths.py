"""Names of source files that are the same on every machine."""

import re

_PACKAGE = re.compile(r"^.*[/\\](?:(?:site|dist)-packages[/\\]|src[/\\](?=peakward[/\\]))")


def source_path(filename: str, directory: str) -> str:
    """An installed package's file, and Peakward's own, from the package on; a file under `directory` relative
    to it; any other file unchanged. No file is below an empty `directory`."""
    short = _PACKAGE.sub("", filename)
    if short != filename or not directory:
        return short
    return filename.removeprefix(directory.rstrip("/\\") + "/")
