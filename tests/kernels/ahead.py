"""Compiles an operator's kernels for a GPU that need not be there, and prints what each takes.

    python tests/kernels/ahead.py NAME[,NAME…] CAPABILITY [--ptx FOLDER]

Runs every launch of `tests/kernels/launches/NAME.py` on CPU tensors, in a process of its own because
the suite's has Triton's interpreter: the launches are those of the product, types and alignment
specialised as there, and end before the GPU would be asked. Under another Triton on the path, with
that one. Each one's PTX is added to KERNEL.ptx in FOLDER, launch after launch.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

LAUNCHES = Path(__file__).parent / "launches"
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
FIGURES = ("registers", "stack_bytes", "shared_bytes")
STACK_POINTER = re.compile(r"\bR1\b")
"""The register that every kernel begins by loading."""
_RUN = JITFunction.run


def compile_all(
    name: str, capability: int, *, ptx: Path | None
) -> tuple[list[str], list[dict[str, Any]]]:
    """The launches of `launches/NAME.py` for that capability, NAME first, and what each kernel that was
    compiled takes.

    Beside each figure of it, under the same name in `limits`, the most that the launch allows.
    """
    spec = importlib.util.spec_from_file_location(name, LAUNCHES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    launches = {
        f"{name}: {label}": launch
        for label, launch in module.LAUNCHES.items()
        if capability in launch.capabilities
    }
    taken = []
    for label, launch in launches.items():
        compiled: list[Any] = []
        JITFunction.run = _compiles_into(compiled)
        launch.start()
        if ptx is not None:
            _add(compiled, ptx)
        limits = {name: getattr(launch, name) for name in FIGURES}
        taken += [{"launch": label, "limits": limits, **_taken(each)} for each in compiled]
    return list(launches), taken


def _pretended(capability: int) -> SimpleNamespace:
    """As much of a driver as compiling asks of."""
    return SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", capability, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_benchmarker=lambda: None,
    )


def _compiles_into(compiled: list[Any]):
    """In place of a launch."""

    def run(self, *args, grid, warmup, **options):
        compiled.append(_RUN(self, *args, grid=grid, warmup=True, **options))

    return run


def _add(compiled: list[Any], folder: Path) -> None:
    for kernel in compiled:
        with (folder / f"{kernel.metadata.name}.ptx").open("a") as ptx:
            ptx.write(kernel.asm["ptx"])


def _taken(kernel: Any) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(kernel.asm["cubin"])
        cubin.flush()
        text = _told("cuobjdump", "--dump-resource-usage", cubin.name)
        code = _told("nvdisasm", "-c", cubin.name)
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", text).groups()
    n_named = sum(bool(STACK_POINTER.search(line)) for line in code.splitlines())
    return {
        # ptxas 12.8 was seen to take it for a number that it had lost.
        "stray_reads": max(0, n_named - 1) if stack == "0" else 0,
        "kernel": kernel.metadata.name,
        "registers": int(registers),
        "stack_bytes": int(stack),
        "shared_bytes": kernel.metadata.shared,
    }


def _told(tool: str, *arguments: str) -> str:
    done = subprocess.run([TOOLS / tool, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def main(options: argparse.Namespace) -> None:
    driver.set_active(_pretended(options.capability))
    started, found = [], []
    for name in options.names.split(","):
        launches, taken = compile_all(name, options.capability, ptx=options.ptx)
        started += launches
        found += taken
    print(json.dumps({"triton": triton.__version__, "launches": started, "kernels": found}))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("names")
    parser.add_argument("capability", type=int)
    parser.add_argument("--ptx", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main(parsed())
