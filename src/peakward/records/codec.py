"""Records to JSON and back, with a schema version on every document."""

from typing import TypeVar

import msgspec

from peakward.records.errors import PeakwardError, printable_json

SCHEMA_VERSION = 11
"""The version of the record format.

1: the first. 2: a study holds the profiles of its cases. 3: a calibration may hold rates, a shape several
experts, and a run names its steps. 4: a study holds forecasts, rates may hold latencies. 5: plans have their
model's parameters, a predicted phase its waits. 6: a study holds the recorded memory of its cases. 7:
recorded memory may have the clock of its kernels. 8: a case may be a piece of code, whose measurement holds
its work. 9: a trial holds its prediction, its bound, and the quantity that it was judged by. 10: recorded
memory tells casts of weights apart, a first step its parts, a measurement and a trial who ended them.
11: a calibration may hold collectives, and a case be of several ranks.
"""

R = TypeVar("R", bound=msgspec.Struct)


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int
    record: msgspec.Raw


def to_json(record: msgspec.Struct) -> bytes:
    """The record as one JSON object under a schema version."""
    body = msgspec.Raw(msgspec.json.encode(record))
    return msgspec.json.encode(_Envelope(schema_version=SCHEMA_VERSION, record=body))


def as_read_back(record: R) -> R:
    """Encode the record to JSON and decode it again, which gives every field its declared type.

    A 5 in a float's place becomes 5.0, and a list in a tuple's place becomes a tuple.

    Raises:
        PeakwardError: a field of another type, or a value that JSON cannot hold (a time that is
            infinite or not a number, another package's integer).
    """
    kind = type(record).__name__
    try:
        # First without JSON, which writes a float that is not a number as null, and bytes as text.
        msgspec.convert(msgspec.to_builtins(record, builtin_types=(bytes,)), type(record))
        return msgspec.json.decode(msgspec.json.encode(record), type=type(record))
    except msgspec.ValidationError as error:
        said = str(error)
        said = said[0].lower() + said[1:]
        said = said if said.startswith("expected") else f"expected fields as declared, got {said}"
        raise PeakwardError(f"{said} of the {kind}: give it what it may hold") from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise PeakwardError(
            f"expected plain values in the {kind}, got what JSON cannot hold: {said}"
        ) from error


def fields(data: bytes) -> frozenset[str]:
    """The field names of a record that `to_json` wrote; empty for any other data."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        return frozenset(msgspec.json.decode(envelope.record, type=dict[str, msgspec.Raw]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return frozenset()


def from_json(data: bytes, record_type: type[R]) -> R:
    """Decode a record that `to_json` wrote. Its texts become printable.

    Raises:
        PeakwardError: not JSON, not such a record, or written by a newer Peakward.
    """
    try:
        envelope = msgspec.json.decode(printable_json(data.decode()), type=_Envelope)
        if envelope.schema_version > SCHEMA_VERSION:
            raise PeakwardError(
                f"expected a record of schema {SCHEMA_VERSION} or older, got {envelope.schema_version}: "
                "it was written by a newer Peakward; upgrade this one"
            )
        return msgspec.json.decode(envelope.record, type=record_type)
    except UnicodeDecodeError as error:
        raise PeakwardError(
            f"expected a {record_type.__name__} record, got bytes that are no text: name a file that "
            ".save or --json wrote"
        ) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeakwardError(f"expected a {record_type.__name__} record, got {error}") from error
