"""Reads a pickle of plain values without ever running anything.

`pickle.Unpickler` with a refusing `find_class` would run nothing either. But it takes as much memory as the
file claims (2**32 memo slots for five bytes, a string of the claimed length), recurses into nested keys, and
holds every dict at once: 1 KB for each event of a snapshot. This reader does not know any opcode that names a
class, calls, builds, or asks for persistent or registered objects. It reads a length only as far as the file
goes, and dicts may be taken away as soon as they are finished.
"""

import re
import struct
import sys
from typing import Any, Final, Protocol

from peakward.records.errors import PeakwardError

CHUNK: Final = 1 << 20
MAX_TEXT: Final = 1 << 24
"""The most bytes of one string. An error message of torch or a kernel's source has thousands."""
MAX_LONG: Final = 32
"""The most bytes of one integer."""
MAX_DEPTH: Final = 64
"""The most marks, and so the deepest nesting of containers. A snapshot has about ten."""

FREELY_HELD: Final = 256 << 20
MOST_HELD: Final = 16
"""The limit of held memory beyond `FREELY_HELD`, as a multiple of the bytes read. Recordings of an H100 take
5 to 8 times theirs, a file of nothing but empty lists 120 times its own."""

_REFERENCES = re.compile(rb"\]\x94\(((?:h.|j.{4})+)e(?!\()", re.DOTALL)
"""A whole list of references to earlier values: a stack. One pattern matches it, because two thirds of a
snapshot's opcodes are such references, and its bytes find a known stack without looking at its frames."""
_REFERENCE = re.compile(rb"h(.)|j(.{4})", re.DOTALL)
_FLOAT = struct.Struct(">d")
_ITEM_BYTES = 40
"""A slot of a container, and an integer in it."""
_ENTRY_BYTES = 140
"""A dict's entry, with its key's and value's slots at the lowest load of its table."""
_CONTAINER_BYTES = 80

SPENT: Final = object()
"""The placeholder of a dict that was taken away, where the pickle might refer to it again."""

FORBIDDEN = {
    0x63: "names a class or function",
    0x93: "names a class or function",
    0x52: "calls a function",
    0x69: "makes an object",
    0x6F: "makes an object",
    0x81: "makes an object",
    0x92: "makes an object",
    0x62: "sets an object's state",
    0x50: "asks for an object outside the file",
    0x51: "asks for an object outside the file",
    0x82: "asks for a registered class",
    0x83: "asks for a registered class",
    0x84: "asks for a registered class",
    0x97: "asks for a buffer outside the file",
    0x98: "asks for a buffer outside the file",
}
"""Opcodes that a pickle of plain values never has, with their effect."""


_CONSTANTS: dict[int, Any] = {0x4E: None, 0x88: True, 0x89: False, 0x29: ()}
_TEXTS = {0x58: 4, 0x8C: 1, 0x8D: 8}
"""BINUNICODE, SHORT_BINUNICODE and BINUNICODE8, with the bytes of their lengths."""
_BYTES = {0x42: 4, 0x43: 1, 0x8E: 8}
"""BINBYTES, SHORT_BINBYTES, BINBYTES8."""
_KEYS = {str, int}


class Malformed(PeakwardError):
    """The file is not a pickle of plain values, or ends early."""


class Collector(Protocol):
    """Takes dicts out of a pickle while it is read."""

    @property
    def n_bytes(self) -> int:
        """The approximate bytes that it holds of the dicts it took."""

    def take(self, found: dict[Any, Any]) -> object | None:
        """The placeholder for the dict, which may not contain it; None to leave the dict in place."""


class Readable(Protocol):
    """A file, or an unpacker of one."""

    def read(self, n_bytes: int, /) -> bytes:
        """The next bytes."""


class PlainPickle:
    """Reads one pickle of dicts, lists, tuples, text, bytes, numbers, bools and None.

    A list whose elements were all seen before in the file becomes a tuple. Dicts have text or integers as
    keys.
    """

    def __init__(self, file: Readable, collector: Collector, max_bytes: int) -> None:
        """Args:
        file: the pickle.
        collector: is shown each dict as it is finished, and may take it away.
        max_bytes: of what may be held at once, counted as it is made; a chunk's worth more may be.
        """
        self._file = file
        self._collector = collector
        self._max_bytes = max_bytes
        self._buffer = b""
        self._at = 0
        self._n_before = 0
        self._ended = False
        self._held = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo_at_mark: list[int] = []
        self._memo: list[Any] = []
        self._stacks: dict[bytes, tuple[Any, ...]] = {}
        self._tuples: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def read(self) -> Any:
        """The value.

        Raises:
            Malformed: an opcode that plain values do not need, a length that is too large, nesting
                that is too deep, or an end before the value's.
            PeakwardError: it holds more than `max_bytes`, or than any recording of its length.
        """
        try:
            while not self._run():
                pass
        except (IndexError, TypeError, ValueError, OverflowError) as error:
            raise Malformed(f"broken near byte {self._n_before + self._at:,}") from error
        if len(self._stack) != 1 or self._marks:
            raise Malformed(f"broken near byte {self._n_before + self._at:,}")
        return self._stack[0]

    # One loop instead of a method for each opcode: a call each would double the time.
    def _run(self) -> bool:  # noqa: PLR0912, PLR0915
        """Process the buffer; returns whether it held the pickle's end."""
        self._fill()
        buffer, at = self._buffer, self._at
        # No opcode of a fixed length has more than nine bytes.
        end = len(buffer) if self._ended else len(buffer) - 9
        stack, marks, memo = self._stack, self._marks, self._memo
        push = stack.append
        while at < end:
            op = buffer[at]
            if op == 0x68:  # BINGET
                push(memo[buffer[at + 1]])
                at += 2
            elif op == 0x4B:  # BININT1
                push(buffer[at + 1])
                at += 2
            elif op == 0x8A:  # LONG1
                n = buffer[at + 1]
                if n > 7:
                    self._at = at + 2
                    push(int.from_bytes(self._bytes(n, MAX_LONG), "little", signed=True))
                    buffer, at = self._buffer, self._at
                    end = len(buffer) if self._ended else len(buffer) - 9
                else:
                    push(int.from_bytes(buffer[at + 2 : at + 2 + n], "little", signed=True))
                    at += 2 + n
            elif op == 0x4A:  # BININT
                push(int.from_bytes(buffer[at + 1 : at + 5], "little", signed=True))
                at += 5
            elif op == 0x4D:  # BININT2
                push(buffer[at + 1] | buffer[at + 2] << 8)
                at += 3
            elif op == 0x6A:  # LONG_BINGET
                push(memo[int.from_bytes(buffer[at + 1 : at + 5], "little")])
                at += 5
            elif op == 0x94:  # MEMOIZE
                memo.append(stack[-1])
                at += 1
            elif op == 0x28:  # MARK
                if len(marks) >= MAX_DEPTH:
                    raise Malformed(f"nested deeper than {MAX_DEPTH} near byte {self._place(at):,}")
                marks.append(len(stack))
                self._memo_at_mark.append(len(memo) - 1)
                at += 1
            elif op == 0x75:  # SETITEMS
                self._set_items(marks.pop(), self._memo_at_mark.pop())
                at += 1
            elif op == 0x7D:  # EMPTY_DICT
                push({})
                self._held += _CONTAINER_BYTES
                at += 1
            elif op == 0x5D:  # EMPTY_LIST
                found = _REFERENCES.match(buffer, at)
                if found is None:
                    push([])
                    self._held += _CONTAINER_BYTES
                    at += 1
                else:
                    push(self._references(found[1]))
                    memo.append(stack[-1])
                    at = found.end()
            elif op == 0x86:  # TUPLE2
                last = stack.pop()
                stack[-1] = self._tuple((stack[-1], last))
                at += 1
            elif op == 0x71:  # BINPUT
                self._put(buffer[at + 1])
                at += 2
            elif op == 0x72:  # LONG_BINPUT
                self._put(int.from_bytes(buffer[at + 1 : at + 5], "little"))
                at += 5
            elif op == 0x2E:  # STOP
                self._at = at + 1
                return True
            else:
                self._at = at + 1
                self._seldom(op)
                buffer, at = self._buffer, self._at
                end = len(buffer) if self._ended else len(buffer) - 9
        self._at = at
        if self._ended and at >= len(buffer):
            raise Malformed(f"ends early, after {self._place(at):,} bytes")
        return False

    def _seldom(self, op: int) -> None:
        """Process a rare opcode; `self._at` is behind it."""
        stack = self._stack
        if op in _CONSTANTS:
            stack.append(_CONSTANTS[op])
        elif op in _TEXTS:
            text = self._sized(_TEXTS[op], MAX_TEXT).decode("utf-8", "surrogatepass")
            # The widest character of a string sets the width of all: up to four bytes for one byte in the
            # file.
            self._held += sys.getsizeof(text)
            stack.append(text)
        elif op in _BYTES:
            found = self._sized(_BYTES[op], MAX_TEXT)
            self._held += sys.getsizeof(found)
            stack.append(found)
        elif op == 0x8B:  # LONG4
            stack.append(int.from_bytes(self._sized(4, MAX_LONG), "little", signed=True))
        elif op == 0x47:  # BINFLOAT
            stack.append(_FLOAT.unpack(self._bytes(8, 8))[0])
        elif op == 0x80:  # PROTO
            self._check_protocol(self._bytes(1, 1)[0])
        elif op == 0x95:  # FRAME: a hint about lengths, of which none is believed.
            self._bytes(8, 8)
        elif op in (0x85, 0x87):  # TUPLE1, TUPLE3
            n = 1 if op == 0x85 else 3
            stack[-n:] = [self._tuple(tuple(stack[-n:]))]
        else:
            self._marked(op)

    def _marked(self, op: int) -> None:
        """Process an opcode that takes the values above a mark, or one value."""
        stack = self._stack
        if op == 0x65:  # APPENDS
            self._extend(self._above_mark())
        elif op == 0x61:  # APPEND
            self._extend([stack.pop()])
        elif op == 0x73:  # SETITEM
            self._set_items(len(stack) - 2, -1)
        elif op == 0x74:  # TUPLE
            stack.append(self._tuple(tuple(self._above_mark())))
        elif op in FORBIDDEN:
            raise PeakwardError(
                f"expected plain values alone, got a pickle that {FORBIDDEN[op]} "
                f"(opcode 0x{op:02x} at byte {self._place(self._at) - 1:,}): nothing of it was run; "
                "trust no such file, and pickle what torch.cuda.memory._snapshot() gave as it is"
            )
        else:
            raise Malformed(
                f"has byte 0x{op:02x} at {self._place(self._at) - 1:,}, where pickles of plain values "
                "(protocol 2 or later) have an opcode"
            )

    def _above_mark(self) -> list[Any]:
        start = self._marks.pop()
        self._memo_at_mark.pop()
        above = self._stack[start:]
        del self._stack[start:]
        return above

    def _extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise TypeError
        self._held += _ITEM_BYTES * len(values)
        target += values

    def _set_items(self, start: int, memo_index: int) -> None:
        stack = self._stack
        keys, values = stack[start::2], stack[start + 1 :: 2]
        # Nested keys could take very long to hash, or end the process by recursion.
        if start < 1 or len(keys) != len(values) or not set(map(type, keys)) <= _KEYS:
            raise TypeError
        del stack[start:]
        target = stack[-1]
        if type(target) is not dict:
            raise TypeError
        target.update(zip(keys, values, strict=True))
        kept = self._collector.take(target)
        if kept is None:
            self._held += _ENTRY_BYTES * len(keys)
            return
        # Its bytes as a container stay counted, because the memo may hold it in other places.
        stack[-1] = kept
        self._check_held()  # A stack of many frames takes many times the bytes that name it.
        if memo_index >= 0 and self._memo[memo_index] is target:
            self._memo[memo_index] = SPENT

    def _tuple(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The tuple. Small ones of integers, such as a pool's id, are kept once."""
        if len(values) <= 3 and all(type(each) is int for each in values):
            known = self._tuples.get(values)
            if known is not None:
                return known
            self._tuples[values] = values
        self._held += _CONTAINER_BYTES + _ITEM_BYTES * len(values)
        return values

    def _references(self, text: bytes) -> tuple[Any, ...]:
        known = self._stacks.get(text)
        if known is None:
            memo = self._memo
            known = self._stacks[text] = tuple(
                memo[int.from_bytes(short or long, "little")]
                for short, long in _REFERENCE.findall(text)
            )
            self._held += _CONTAINER_BYTES + len(text) + _ITEM_BYTES * len(known)
        return known

    def _put(self, index: int) -> None:
        """Put a value at the memo's next index: picklers number one after the other."""
        if index != len(self._memo):
            raise ValueError
        self._memo.append(self._stack[-1])

    def _sized(self, n_length: int, most: int) -> bytes:
        """The bytes after a length of `n_length` bytes."""
        return self._bytes(int.from_bytes(self._bytes(n_length, 8), "little"), most)

    def _bytes(self, n: int, most: int) -> bytes:
        if n > most:
            raise Malformed(
                f"claims a value of {n:,} bytes near byte {self._place(self._at):,}, of at most {most:,}"
            )
        while len(self._buffer) - self._at < n and not self._ended:
            self._fill()
        found = self._buffer[self._at : self._at + n]
        if len(found) < n:
            raise Malformed(f"ends early, after {self._place(len(self._buffer)):,} bytes")
        self._at += n
        return found

    def _fill(self) -> None:
        # Done here and not between runs: a text across the end of each chunk would make one run of
        # everything.
        self._check_held()
        chunk = b"" if self._ended else self._file.read(CHUNK)
        self._ended = not chunk
        self._n_before += self._at
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0

    def _place(self, at: int) -> int:
        return self._n_before + at

    def _check_protocol(self, version: int) -> None:
        if self._place(self._at) != 2:
            raise Malformed(f"begins again near byte {self._place(self._at):,}")
        if not 2 <= version <= 5:
            raise Malformed(f"has pickle protocol {version}, of which 2 to 5 are read")

    def _check_held(self) -> None:
        held = (
            self._held
            + self._collector.n_bytes
            + 8 * len(self._memo)
            + _ITEM_BYTES * len(self._stack)
        )
        read = self._place(len(self._buffer))
        if held > FREELY_HELD + MOST_HELD * read:
            raise PeakwardError(
                f"expected a recorded snapshot, got {read:,} bytes whose values take "
                f"{held / 2**20:,.0f} MiB, more than {MOST_HELD} times as much: such a file is made to fill "
                "memory; record the snapshot again"
            )
        if held > self._max_bytes:
            raise PeakwardError(
                f"expected a snapshot that fits into {self._max_bytes / 2**30:.2f} GiB, half of the "
                f"memory that is free, got one that takes more after {self._place(self._at):,} bytes: "
                "record fewer events (max_entries=100000) or read it where more memory is free"
            )
