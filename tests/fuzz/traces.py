"""Coverage-guided fuzzing of everything that reads a trace: `python tests/fuzz/traces.py FOLDER`.

FOLDER holds seeds, and takes what is found; further arguments are libFuzzer's (-max_total_time=600).
Needs `pip install atheris`. Whatever the bytes, reading ends in a profile or in a PeakwardError of one
line; anything else is a finding, and becomes a test. `--seed` first cuts seeds from the traces that
the tests bring.
"""

import gzip
import json
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["peakward.traces"]):
    from peakward.records.errors import PeakwardError
    from peakward.traces.readers import nsys_export, torch_json
    from peakward.traces.trace import Trace

READERS = (nsys_export, torch_json)
"""Imported here to be instrumented: the command imports the one that a file needs."""

RECORDED = Path(__file__).parents[1] / "data" / "traces"
SCRATCH = Path(tempfile.mkdtemp(prefix="peakward-fuzz-")) / "trace"


def read_all(data: bytes) -> None:
    """Read and analyse the bytes as a file."""
    SCRATCH.write_bytes(data)
    try:
        Trace.open(SCRATCH).profile()
    except PeakwardError as refused:
        assert len(str(refused).splitlines()) == 1, str(refused)


def write_seeds(folder: Path) -> None:
    """A few events of each kind from each recorded trace, in two layouts and gzipped."""
    for path in RECORDED.glob("*.json.gz"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        events = document["traceEvents"]
        kinds = {(each.get("ph"), each.get("cat")) for each in events}
        few = [
            each
            for kind in sorted(kinds, key=str)
            for each in [e for e in events if (e.get("ph"), e.get("cat")) == kind][:1]
        ]
        small = {
            **document,
            "deviceProperties": document["deviceProperties"][:1],
            "traceEvents": few,
        }
        for name, text in (
            ("compact", json.dumps(small, separators=(",", ":"))),
            ("pretty", json.dumps(small, indent=2)),
        ):
            (folder / f"{path.name}.{name}").write_text(text)
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(json.dumps(small).encode()))


def main() -> None:
    """Fuzz until libFuzzer is done."""
    if "--seed" in sys.argv:
        sys.argv.remove("--seed")
        folder = Path(sys.argv[1])
        folder.mkdir(parents=True, exist_ok=True)
        write_seeds(folder)
    atheris.Setup(sys.argv, read_all)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
