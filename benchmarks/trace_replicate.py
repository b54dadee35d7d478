"""A large trace from a small one: `python benchmarks/trace_replicate.py SOURCE OUT --megabytes 200`.

The events of a PyTorch trace are written again and again, each copy after the one before it in time
and with ids of its own (correlation, External id, flow ids), until the file is large enough. OUT is
compressed if it ends in `.gz`.
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

_IDS = ("correlation", "External id")


def copies(events: list[dict[str, Any]]) -> Iterator[str]:
    """Endless: each is the text of all events, later than the one before by their whole span."""
    span_us = max(_end_us(each) for each in events) - min(each.get("ts", 0.0) for each in events)
    n_ids = 1 + max(
        each.get("args", {}).get(key, 0) for each in events for key in _IDS if "args" in each
    )
    copy = 0
    while True:
        moved = (_moved(each, copy * round(span_us + 1), copy * n_ids) for each in events)
        yield ",\n".join(map(_text, moved))
        copy += 1


def _end_us(event: dict[str, Any]) -> float:
    return float(event.get("ts", 0.0)) + float(event.get("dur", 0.0))


def _moved(event: dict[str, Any], by_us: int, by_ids: int) -> dict[str, Any]:
    moved = dict(event)
    if "ts" in event:
        moved["ts"] = round(event["ts"] + by_us, 3)
    if "id" in event:
        moved["id"] += by_ids
    if "args" in event:
        ids = {key: event["args"][key] + by_ids for key in _IDS if key in event["args"]}
        moved["args"] = event["args"] | ids
    return moved


def _text(event: dict[str, Any]) -> str:
    """Laid out over lines as Kineto does."""
    args = event.get("args")
    outer = json.dumps({key: value for key, value in event.items() if key != "args"})
    if args is None:
        return f"  {{\n    {outer[1:-1]}\n  }}"
    return f'  {{\n    {outer[1:-1]},\n    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}\n  }}'


def _open(path: Path) -> IO[str]:
    return gzip.open(path, "wt", compresslevel=6) if path.suffix == ".gz" else path.open("w")


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=float, default=200)
    options = parser.parse_args()
    opened = gzip.open if options.source.suffix == ".gz" else open
    with opened(options.source, "rt") as file:
        trace = json.load(file)
    events = trace.pop("traceEvents")
    metadata = {key: trace.pop(key) for key in ("traceName",) if key in trace}
    written = 0
    with _open(options.out) as out:
        out.write(json.dumps(trace, indent=2)[:-2] + ',\n  "traceEvents": [\n')
        for number, text in enumerate(copies(events)):
            out.write((",\n" if number else "") + text)
            written += len(text)
            if written > options.megabytes * 1e6:
                break
        out.write(f"\n  ],\n  {json.dumps(metadata)[1:]}\n")


if __name__ == "__main__":
    main()
