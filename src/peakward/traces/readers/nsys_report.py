"""Reads an Nsight Systems report, a `.nsys-rep`, with the help of `nsys export`."""

import shlex
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from peakward.records.errors import PeakwardError
from peakward.traces.readers import nsys_sqlite
from peakward.traces.readers.nsys.file import one_line, size_of_regular
from peakward.traces.table import Table


def read(path: Path) -> Table:
    """The report at `path` as a table. Raises PeakwardError where it cannot be exported or read.

    The format is NVIDIA's own, so the `nsys` on PATH exports it into a temporary folder that is removed
    afterwards. A report opens in the version that wrote it and in later ones.
    """
    size_of_regular(path, "an Nsight Systems report")
    nsys = shutil.which("nsys")
    if nsys is None:
        raise PeakwardError(
            f"expected `nsys` on PATH to export the report, got none for {one_line(path)}: where Nsight "
            f"Systems is installed run `{_command_line(path)}`, then give the .sqlite file"
        )
    with TemporaryDirectory(prefix="peakward-nsys-") as folder:
        export = Path(folder) / "export.sqlite"
        _export(nsys, path, export)
        return nsys_sqlite.read_as(export, path)


def _command_line(path: Path) -> str:
    output, report = shlex.quote(f"{path.stem}.sqlite"), shlex.quote(str(path))
    return one_line(f"nsys export --type sqlite --output {output} {report}")


def _export(nsys: str, path: Path, export: Path) -> None:
    command = [nsys, "export", "--type", "sqlite", "--output", str(export), str(path.absolute())]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except OSError as error:
        raise PeakwardError(
            f"expected an `nsys` that runs, got {one_line(error)}: export the report elsewhere "
            f"with `{_command_line(path)}`, then give the .sqlite file"
        ) from error
    if done.returncode != 0 or not export.is_file():
        said = done.stdout.decode("utf-8", "replace").strip().splitlines()
        last = one_line(said[-1].strip()) if said else "nothing said"
        raise PeakwardError(
            f"expected a report that `nsys export` reads, got exit status {done.returncode} "
            f'("{last}") for {one_line(path)}: export it with the version of Nsight Systems that '
            "recorded it, or a later one"
        )
