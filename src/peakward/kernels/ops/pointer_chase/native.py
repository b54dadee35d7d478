"""The chain of loads on a CPU, in a few lines of C++: nothing in torch waits for one load at a time."""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

SOURCE = """
extern "C" void chase(const char *table, long long *position, long long n_loads) {
    long long offset = *position;
    for (; n_loads > 0; --n_loads)
        offset = *reinterpret_cast<const long long *>(table + offset);
    *position = offset;
}
"""
"""Offsets in bytes: scaled by 8, the address took a cycle more (1.48 against 1.17 ns from the L1 of a
Zen 4)."""
FLAGS = ("-O2", "-shared", "-fPIC")
COMPILE_TIMEOUT_S = 60.0

Chase = Callable[[Tensor, Tensor, int], None]


def build(compiler: Sequence[str]) -> Chase:
    """Compile it: a function of the arguments of `reference.chase`, for tensors on the CPU.

    Args:
        compiler: the words that call a C++ compiler with gcc's options.

    Raises:
        RuntimeError: it ended with an error, which is quoted.
        OSError: it, or what it made, cannot be run.
    """
    with tempfile.TemporaryDirectory(prefix="peakward-") as folder:
        source, library = Path(folder, "chase.cpp"), Path(folder, "chase.so")
        source.write_text(SOURCE, encoding="ascii")
        done = subprocess.run(
            [*compiler, *FLAGS, str(source), "-o", str(library)],
            capture_output=True,
            text=True,
            check=False,
            timeout=COMPILE_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{compiler[0]} ended with {done.returncode}: {done.stderr.strip()}")
        # The library stays loaded when its file is gone.
        native = ctypes.CDLL(str(library)).chase
    native.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong)
    native.restype = None

    def chase(table: Tensor, position: Tensor, n_loads: int) -> None:
        native(table.data_ptr(), position.data_ptr(), n_loads)

    return chase
