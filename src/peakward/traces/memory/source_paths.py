"""Files of stacks by names that say the same on every machine."""

import re

_PACKAGE = re.compile(r"^.*[/\\](?:(?:site|dist)-packages[/\\]|src[/\\](?=peakward[/\\]))")


def source_path(filename: str, directory: str) -> str:
    """An installed package's file from the package on, Peakward's own alike; one under `directory`
    relative to that; any other as it is. No file is below an empty `directory`."""
    short = _PACKAGE.sub("", filename)
    if short != filename or not directory:
        return short
    return filename.removeprefix(directory.rstrip("/\\") + "/")
