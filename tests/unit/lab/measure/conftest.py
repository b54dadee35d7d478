"""A driver for the sensors' process, so that it can be run for real where there is no GPU."""

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest

FAKE = Path(__file__).with_name("fake_pynvml.py")


class FakeNvml:
    """What the sensors' process will find for pynvml."""

    def __init__(self, monkeypatch, folder):
        self._monkeypatch = monkeypatch
        self._log = folder / "readings"
        self._log.touch()
        (folder / "pynvml.py").write_text(FAKE.read_text())
        before = os.environ.get("PYTHONPATH")
        monkeypatch.setenv("PYTHONPATH", str(folder) + (f":{before}" if before else ""))
        monkeypatch.setenv("FAKE_NVML_LOG", str(self._log))

    def fail(self, fault):
        """From the next process on."""
        self._monkeypatch.setenv("FAKE_NVML", fault)

    def wait_for_readings(self, n):
        """Until as many were begun, the one before READY among them."""
        wait_until(lambda: len(self._log.read_text().splitlines()) >= n)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = monotonic() + 600.0  # against a hang alone
    while not holds():
        assert monotonic() < deadline_s
        sleep(0.01)


@pytest.fixture
def fake_nvml(monkeypatch, tmp_path):
    return FakeNvml(monkeypatch, tmp_path)


@pytest.fixture
def wait_until_dead():
    """wait_until_dead(pid): it ends soon; a dead process that nobody has waited for is dead."""

    def wait(pid):
        stat = Path(f"/proc/{pid}/stat")

        def is_dead():
            try:
                return stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"
            except (FileNotFoundError, ProcessLookupError):
                return True

        wait_until(is_dead)

    return wait
