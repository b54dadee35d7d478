"""Files that are snapshots, and files that are not."""

import copy
import gzip
import io
import json
import pickle
import tarfile
import zipfile

import pytest

from peakward.records.errors import PeakwardError
from peakward.traces.memory import snapshot_file
from peakward.traces.memory.snapshot_file import read
from peakward.traces.memory.table import Action
from tiers import in_full

from .allocator import busy
from .files import REAL, plain, real, written


@pytest.mark.parametrize("name", REAL)
def test_a_recording_is_read_whole(name):
    found, whole = read(real(name)), plain(name)
    events = [each for trace in whole["device_traces"] for each in trace]
    assert len(found.events) == len(events)
    assert found.events.n_bytes.tolist() == [each["size"] for each in events]
    assert found.events.time_us.tolist() == [each["time_us"] for each in events]
    assert [Action(each).name.lower() for each in found.events.action] == [
        each["action"] for each in events
    ]
    for event, stack in list(zip(events, found.events.stack.tolist(), strict=True))[::37]:
        frames = [found.frames[each] for each in found.stacks[stack]]
        assert [tuple(each) for each in frames] == [
            (each["filename"], each["line"], each["name"]) for each in event["frames"]
        ]
    blocks = [each for segment in whole["segments"] for each in segment["blocks"]]
    assert sum(len(each.blocks) for each in found.segments) == len(blocks)
    assert found.settings == whole["allocator_settings"]
    assert len(found.annotations) == len(whole["external_annotations"])


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_by_any_protocol_and_unshared_it_is_the_same(tmp_path, protocol):
    whole = plain("oom")
    unshared = json.loads(json.dumps(whole))
    first = read(real("oom"))
    for value in (whole, unshared, dict(reversed(whole.items())), whole | {"later": [{"x": 1.5}]}):
        found = read(written(tmp_path, value, protocol=protocol))
        assert found.events.stack.tolist() == first.events.stack.tolist() or value is not whole
        assert found.events.address.tolist() == first.events.address.tolist()
        assert len(found.stacks) == len(first.stacks)
        assert [each.n_bytes for each in found.segments] == [
            each.n_bytes for each in first.segments
        ]


def archive(kind: str) -> bytes:
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as zipped:
            zipped.writestr("archive/data.pkl", b"\x80\x02}.")
    else:
        with tarfile.open(fileobj=file, mode="w") as tarred:
            tarred.addfile(tarfile.TarInfo("data.pkl"), io.BytesIO(b""))
    return file.getvalue()


OTHERS = {
    "empty": (b"", "is empty"),
    "zip": (archive("zip"), "torch.save"),
    "tar": (archive("tar"), "is a tar archive"),
    "json": (b'{"traceEvents": []}', "peakward trace"),
    "sqlite": (b"SQLite format 3\0" + bytes(100), "peakward trace"),
    "text": (b"hello", "neither a pickle nor gzip"),
    "protocol 0": (pickle.dumps({"segments": []}, 0), "neither a pickle nor gzip"),
    "no segments": (pickle.dumps({"a": 1}), "a dict without them"),
    "a list": (pickle.dumps([1]), "holds a list"),
    "None": (pickle.dumps(None), "holds nothing"),
    "gzip of nothing": (gzip.compress(b""), "ends early"),
    "gzip cut off": (gzip.compress(pickle.dumps(list(range(9999))))[:-9], "gzip is damaged"),
    "gzip damaged": (gzip.compress(bytes(99))[:-8] + bytes(8), "gzip is damaged"),
    "code": (b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00idtR.", "nothing of it was run"),
    "gzipped code": (gzip.compress(b"\x80\x02cos\nsystem\n."), "nothing of it was run"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_file_is_refused_in_one_line(name, tmp_path):
    data, said = OTHERS[name]
    path = tmp_path / "x\x1b[2J.pickle"
    path.write_bytes(data)
    with pytest.raises(PeakwardError) as refusal:
        read(path)
    text = str(refusal.value)
    assert text.startswith("expected ") and ", got " in text and said in text
    assert text.isprintable()


def test_a_file_that_is_not_there_or_a_folder_is_refused(tmp_path):
    for path in (tmp_path / "none.pickle", tmp_path):
        with pytest.raises(PeakwardError, match="expected a readable snapshot"):
            read(path)


def edited(change):
    """A small right snapshot, changed."""
    found = copy.deepcopy(busy(3, 30).snapshot())
    change(found)
    return found


def set_event(key, value):
    return lambda found: found["device_traces"][0][3].update({key: value})


def set_block(key, value):
    return lambda found: found["segments"][0]["blocks"][0].update({key: value})


def set_segment(key, value):
    return lambda found: found["segments"][0].update({key: value})


def sharing(segment):
    """Two more, elsewhere, of the same list of blocks, which may leave their addresses out."""
    for block in segment["blocks"]:
        block.pop("address", None)
    return [segment | {"address": n << 60} for n in (1, 2)]


@pytest.mark.parametrize(
    "change",
    [
        *(set_event("size", value) for value in (-1, "512", None, 1.5, 2**63, 2**200, [], {})),
        *(set_event("addr", value) for value in (-1, "a", 2**64)),
        *(set_event("time_us", value) for value in ("now", 2**70, [])),
        *(set_event("frames", value) for value in ("a", 3, [3], [{}], [{"filename": 1}], {})),
        set_event("frames", [{"filename": "a", "line": "1", "name": "b"}]),
        *(set_event("action", value) for value in (["alloc"], {})),
        *(set_block("size", value) for value in (-512, "512", 0, None, 2**80, True)),
        *(set_block("state", value) for value in ("free", None, [], 3)),
        set_block("address", 5),
        set_block("requested_size", -1),
        *(set_segment("total_size", value) for value in (-1, "a", 1)),
        *(set_segment("device", value) for value in (-1, 10**6, "0")),
        *(set_segment("address", value) for value in (-1, "0", None)),
        *(set_segment("blocks", value) for value in (None, {}, [None], [])),
        *(set_segment("segment_pool_id", value) for value in (None, 3, (1,), ("a", "b"))),
        lambda found: found["segments"].append(found["segments"][0]),
        lambda found: found["segments"].append(None),
        lambda found: found["segments"].extend(sharing(found["segments"][0])),
        lambda found: found.update(segments={}),
        lambda found: found.update(device_traces={}),
        lambda found: found.update(device_traces=[3]),
        lambda found: found["device_traces"].append([1]),
        lambda found: found["device_traces"][0].append(found["device_traces"][0][0]),
        lambda found: found.update(later=[{"action": "alloc"}]),
    ],
)
def test_a_hand_edited_snapshot_is_refused_in_one_line(change, tmp_path):
    with pytest.raises(PeakwardError) as refusal:
        read(written(tmp_path, edited(change)))
    text = str(refusal.value)
    assert text.startswith("expected ") and ", got " in text and text.isprintable()


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.update(later={"a": (1, 2, 3)}),
        set_event("later", ["x"]),
        set_event("action", "user_defined"),
        set_event("frames", [{"filename": "a", "line": 1, "name": "b", "fx_node_op": "c"}]),
        set_event("forward_frames", ["a", "b"]),
        set_segment("later", 1),
        set_block("frames", []),
        lambda found: found.pop("device_traces"),
        lambda found: found.pop("external_annotations"),
        lambda found: found.update(external_annotations=[{"name": 3}, 7, {"time_us": "a"}]),
        lambda found: found.update(allocator_settings=None),
    ],
)
def test_what_a_later_torch_may_add_or_an_older_one_lack_is_let_through(change, tmp_path):
    read(written(tmp_path, edited(change)))


def test_escape_sequences_are_made_fit_for_a_terminal(tmp_path):
    frame = {"filename": "a\x1b[2J.py", "line": 1, "name": "b\x07"}
    found = read(written(tmp_path, edited(set_event("frames", [frame]))))
    assert all(text.isprintable() for each in found.frames for text in (each.filename, each.name))


def test_half_of_the_free_memory_is_the_bound(tmp_path, monkeypatch):
    path = written(tmp_path, busy(1, 4000).snapshot() | {"later": [[n] for n in range(200_000)]})
    monkeypatch.setattr(snapshot_file, "free_bytes", lambda: 16 << 20)
    with pytest.raises(PeakwardError, match=r"0\.01 GiB, half of the memory that is free"):
        read(path)
    monkeypatch.setattr(snapshot_file, "free_bytes", lambda: None)
    assert len(read(path).events) > 4000


def test_what_is_worked_out_of_columns_counts_before_it_is(tmp_path):
    """Of 10,000 events the columns take 480,000 bytes; three times as much and more is asked for."""
    event = {"action": "alloc", "addr": 4096, "size": 1, "time_us": 1}
    path = written(
        tmp_path, {"segments": [], "device_traces": [[dict(event) for _ in range(10_000)]]}
    )
    assert len(read(path, 4_000_000).events) == 10_000
    with pytest.raises(PeakwardError, match="expected a snapshot that fits into"):
        read(path, 2_000_000)


class Listed(list):
    """Counts how often it is looked through."""

    n = 0

    def __iter__(self):
        Listed.n += 1
        return super().__iter__()


def test_a_list_of_events_that_is_named_many_times_is_not_looked_through():
    """Or a file of n bytes would take n² steps before it is refused."""
    trace = Listed([snapshot_file.EVENT] * 100)
    with pytest.raises(PeakwardError, match="lists of events, each once"):
        snapshot_file._event_counts([trace] * 64, 100)
    assert Listed.n == 0
    assert snapshot_file._event_counts([trace, []], 100) == [100, 0]


def test_more_devices_than_a_process_has_are_refused(tmp_path):
    """Each would be worked out from all events."""
    for value in (
        {"segments": [], "device_traces": [[]] * 65},
        {"segments": [{"device": 64, "address": 0, "total_size": 0, "blocks": []}]},
    ):
        with pytest.raises(PeakwardError, match="so record it again"):
            read(written(tmp_path, value))


def test_an_annotation_that_is_named_many_times_is_there_once_and_cut(tmp_path):
    nested = []
    for _ in range(50):
        nested = [nested]
    shared = {"name": "\x1b" * 1_000_000, "time_us": 5, "device": 0, "stage": nested}
    early = {"name": "b", "time_us": 1, "device": 0, "stage": "START"}
    value = {"segments": [], "device_traces": [], "external_annotations": [shared] * 1000 + [early]}
    found = read(written(tmp_path, value)).annotations
    assert [each.time_us for each in found] == [1, 5]
    assert found[1].name == r"\x1b" * 500 and found[1].stage == ""


class Unpacking(gzip.GzipFile):
    """Counts what is unpacked of any file."""

    n_bytes = 0

    def read(self, size=-1):
        found = super().read(size)
        Unpacking.n_bytes += len(found)
        return found


@pytest.mark.parametrize("made", [b"h\x00", *in_full([b"]", b"\x95" + bytes(8)])])
def test_a_gzip_that_unpacks_to_what_no_recording_would_is_refused_early(
    made, tmp_path, monkeypatch
):
    path = tmp_path / "bomb.pickle.gz"
    path.write_bytes(gzip.compress(b"\x80\x04]\x94(" + made * ((32 << 20) // len(made))))
    Unpacking.n_bytes = 0
    monkeypatch.setattr(gzip, "open", lambda file: Unpacking(fileobj=file))
    with pytest.raises(PeakwardError, match="such a file is made to fill memory"):
        read(path, max_bytes=1 << 40)
    assert Unpacking.n_bytes < 12 << 20
