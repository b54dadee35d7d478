"""Time that a test decides, so that nothing is timed."""

import pytest


class SteppedClock:
    """A clock that stands still but for what the calls say they take."""

    look_back = 0

    def __init__(self):
        self.now_s, self.log, self.marks = 0.0, [], {}

    def reserve(self, n):
        self.log.append("reserve")

    def mark(self, i):
        self.log.append(f"mark {i}")
        self.marks[i] = self.now_s

    def wait(self, i):
        self.log.append(f"wait {i}")

    def between_s(self, i, j):
        return self.marks[j] - self.marks[i]


@pytest.fixture
def stepped():
    """A clock; a call takes so long as it adds to `now_s`."""
    return SteppedClock()
