"""A module from a factory in Python: `package.module:factory`."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Never

import torch

from peakward.lab.models.callers_compilation import given_eager
from peakward.lab.models.given_module import PACKAGE, GivenModule
from peakward.records.errors import PeakwardError, SourceError

OFFERED = ("batch_size", "seq_len", "device")
"""The arguments that a factory is given if it takes them by name."""


def build(path: str, *, batch_size: int, seq_len: int, device: str, seed: int) -> GivenModule:
    """The module that the factory returns under that random seed, not compiled (`GivenModule.compiled`).

    A factory that takes `batch_size`, `seq_len` or `device` by these names is given them.

    Raises:
        SourceError: There is no such module or function.
        PeakwardError: It cannot be imported, raises, needs other arguments or returns no module.
    """
    return given_eager(made(path, batch_size=batch_size, seq_len=seq_len, device=device, seed=seed))


def made(path: str, *, batch_size: int, seq_len: int, device: str, seed: int) -> object:
    """The factory's own result, before anything is known of it.

    Raises:
        SourceError, PeakwardError: as `build`.
    """
    found = factory(path)
    offered = {"batch_size": batch_size, "seq_len": seq_len, "device": device}
    arguments = {name: offered[name] for name in _wanted(found, path)}
    torch.manual_seed(seed)
    try:
        return found(**arguments)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a user's code may raise anything
        raise_as_bad_input(error, f"a factory {path} that returns")


def raise_as_bad_input(error: BaseException, expected: str) -> Never:
    """Raises an error of a user's code as bad input, with its last line and place. Two kinds of errors
    are raised unchanged: that memory ran out, which is a result, and errors of our own code, which are
    faults of ours.

    Raises:
        PeakwardError: always, with these exceptions.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error):
        raise error
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, PeakwardError) or (
        frames and _is_ours(frames[-1]) and _raised(frames[-1])
    ):
        raise error
    said = " ".join("".join(traceback.format_exception_only(error)).split())[:200]
    raise PeakwardError(f"expected {expected}, got {said}{_place(error)}") from error


def _place(error: BaseException) -> str:
    """The innermost line in the working directory's code, else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    folder = str(Path.cwd())
    theirs = [
        each
        for each in frames
        if each.filename.startswith(folder)
        and "site-packages" not in each.filename
        and not _is_ours(each)
    ]
    last = (theirs or frames)[-1]
    return f" ({Path(last.filename).name}:{last.lineno}, in {last.name})"


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return Path(frame.filename).is_relative_to(PACKAGE)


def _raised(frame: traceback.FrameSummary) -> bool:
    """Whether an error in this frame was raised by its own code: a watcher of operators only calls
    them."""
    return frame.name not in ("__torch_function__", "__torch_dispatch__")


def module_and_factory(path: str) -> tuple[str, str]:
    """The two names in `package.module:factory`.

    Raises:
        PeakwardError: it is not of that form.
    """
    name, _, attribute = path.partition(":")
    if not (attribute and all(name.split("."))):
        raise PeakwardError(
            f"expected py:package.module:factory, got {path!r}: for example py:model:build"
        )
    return name, attribute


def factory(path: str) -> Callable[..., object]:
    """The function that a path names.

    Raises:
        SourceError: There is no such module or function.
        PeakwardError: The module cannot be imported.
    """
    name, attribute = module_and_factory(path)
    # Last, so that a file in the working directory does not hide a module of torch's.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise SourceError(
                f"expected a module {name} that can be imported from the working directory, got none: "
                "run the command in the folder that holds it, or install it"
            ) from None
        raise_as_bad_input(error, f"a module {name} that can be imported")
    except (Exception, SystemExit) as error:  # noqa: BLE001  a user's code may raise anything
        raise_as_bad_input(error, f"a module {name} that can be imported")
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        kind = "nothing by that name" if found is None else type(found).__name__
        raise SourceError(f"expected a function {attribute} in {name}, got {kind}")
    return found


def _wanted(found: Callable[..., object], path: str) -> list[str]:
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # The function is written in C.
        return []
    named = [
        each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    unknown = [each for each in named if each.name not in OFFERED and each.default is each.empty]
    if unknown or any(each.kind is each.POSITIONAL_ONLY for each in named):
        names = ", ".join(each.name for each in unknown or named)
        raise PeakwardError(
            f"expected a factory {path} that takes none but {', '.join(OFFERED)}, got one that takes "
            f"{names}: give the others defaults"
        )
    return [each.name for each in named if each.name in OFFERED]
