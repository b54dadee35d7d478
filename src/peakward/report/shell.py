"""Breaks a shell command over several lines so that it can still be pasted."""

import re


def shell_lines(command: str, width: int) -> tuple[str, ...]:
    """The command broken before its options, with backslashes. It stays whole where a quote might span a
    break."""
    if len(command) <= width or re.search("[\"'\\\\]", command):
        return (command,)
    first, *options = re.split(" (?=--)", command)
    lines = [first]
    for option in options:
        if len(lines[-1]) + len(option) + 3 <= width:
            lines[-1] += f" {option}"
        else:
            lines.append(f"    {option}")
    return (*(f"{line} \\" for line in lines[:-1]), lines[-1])
