"""`peakward memory` as a user starts it, where there is no torch."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "snapshots"
WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] == "torch"
        return None if hidden else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
from peakward.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class Runs:
    """Writes a file where it is unpickled."""

    def __reduce__(self):
        return exec, ("open('was_run', 'w').close()",)


def peakward(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_snapshot_is_reported_without_torch(tmp_path):
    ended = peakward("memory", str(DATA / "graph.pickle.gz"), "--json", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    (device,) = json.loads(ended.stdout)["record"]["devices"]
    truth = json.loads((DATA / "graph.json").read_text())["stats"]
    assert device["peak"]["balance"]["allocated_bytes"] == truth["allocated_bytes.all.peak"]
    assert device["most_reserved_bytes"] == truth["reserved_bytes.all.peak"]


def test_a_hostile_one_is_refused_and_does_nothing(tmp_path):
    (tmp_path / "x.pickle").write_bytes(pickle.dumps({"segments": [Runs()]}))
    ended = peakward("memory", "x.pickle", cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stdout == "" and len(ended.stderr.splitlines()) == 1
    assert "nothing of it was run" in ended.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["x.pickle"]
