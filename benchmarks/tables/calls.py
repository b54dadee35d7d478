"""How an operator is called: its signature and what its docstring says."""

import inspect

from peakward import kernels

MOST_COLUMNS = 88


def calls(*names: str) -> str:
    """Of public names, each with its signature and docstring."""
    parts = []
    for name in names:
        parts += [f"### {name}", "", "```python", f"from peakward.kernels import {name}", ""]
        parts += [_signature(name), "```", "", "```text"]
        parts += [inspect.getdoc(getattr(kernels, name)) or "", "```", ""]
    return "\n".join(parts)


def _signature(name: str) -> str:
    parameters = list(inspect.signature(getattr(kernels, name)).parameters.values())
    taken = [_word(each) for each in parameters]
    by_name = [i for i, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY]
    if by_name:
        taken.insert(by_name[0], "*")
    line = f"{name}({', '.join(taken)})"
    if len(line) <= MOST_COLUMNS:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in taken), ")"])


def _word(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return parameter.name
    return f"{parameter.name}={parameter.default!r}"
