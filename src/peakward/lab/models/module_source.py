"""Builds a user's module from its source: `py:package.module:factory`, or `hf:` and a configuration.

The files of the working directory that make up a Python module are found without importing or running any.
"""

import ast
import hashlib
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

from peakward.lab.models import python_source, transformers_source
from peakward.lab.models.given_module import GivenModule
from peakward.records.case import ModuleCase
from peakward.records.errors import PeakwardError, SourceError


def fingerprint(source: str) -> str:
    """The fingerprint of the files that the source consists of.

    Raises:
        PeakwardError: A file cannot be found, or read.
    """
    kind, _, name = source.partition(":")
    if kind == "hf":
        return transformers_source.fingerprint(name)
    return files_fingerprint(python_source.module_and_factory(name)[0])


def build(case: ModuleCase, *, device: str | None = None) -> GivenModule:
    """The module, with its inputs.

    Args:
        device: In place of the case's: also meta, where nothing of it is allocated.

    Raises:
        SourceError: The source has changed since the case was made.
        PeakwardError: as the source's kind says.
    """
    kind, _, name = case.source.partition(":")
    if kind not in ("py", "hf"):
        raise PeakwardError(
            f"expected a module that can be built from its source, got {case.source}: it lived in another "
            "process; give it as py:package.module:factory"
        )
    expect_unchanged(case)
    work = case.workload
    if kind == "hf":
        attention = case.configuration.attention
        return transformers_source.build(
            name, attention, device=device or case.device, seed=work.seed
        )
    return python_source.build(
        name,
        batch_size=work.batch_size,
        seq_len=work.seq_len,
        device=device or case.device,
        seed=work.seed,
    )


def expect_unchanged(case: ModuleCase) -> None:
    """Refuses a source that is not as the case describes it.

    Raises:
        SourceError: Its files have changed.
    """
    now = fingerprint(case.source)
    if now != case.fingerprint:
        raise SourceError(
            f"expected {case.source} as it was described, fingerprint {case.fingerprint}, got {now}: its "
            "files have changed since; start again"
        )


def files_fingerprint(module: str) -> str:
    """16 digits that depend on the content of the module's files in the working directory and on the
    versions of the packages that these import. Imports of computed names are not seen.

    Raises:
        PeakwardError: A file is not Python.
    """
    folder, digest = Path.cwd(), hashlib.sha256()
    imported: dict[str, None] = {module: None}
    seen: set[Path] = set()
    for name in imported_from(folder, imported):
        for path in _files(folder, name):
            if path not in seen:
                seen.add(path)
                digest.update(str(path.relative_to(folder)).encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    for package in sorted({name.partition(".")[0] for name in imported} - sys.stdlib_module_names):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        digest.update(f"{package} {version}".encode())
    return digest.hexdigest()[:16]


def imported_from(folder: Path, imported: dict[str, None]) -> Iterator[str]:
    """Yields each name of `imported`, which grows by the imports of its files in the folder."""
    done: set[str] = set()
    while left := [name for name in imported if name not in done]:
        for name in left:
            done.add(name)
            for path in _files(folder, name):
                imported.update(dict.fromkeys(_imports(path, folder)))
            yield name


def _files(folder: Path, name: str) -> Iterator[Path]:
    """The files in the folder of the module or package, and of the packages around it."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        base = folder.joinpath(*parts[:end])
        yield from filter(Path.is_file, (base.with_suffix(".py"), base / "__init__.py"))


def _imports(path: Path, folder: Path) -> Iterator[str]:
    """The dotted names that any import statement of the file may mean, also those in functions."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise PeakwardError(
            f"expected Python that can be imported, got {error} in {path.name}{line}"
        ) from None
    package = path.parent.relative_to(folder).parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *filter(None, (node.module,))))
            yield from filter(None, (base,))
            yield from (".".join(filter(None, (base, each.name))) for each in node.names)
