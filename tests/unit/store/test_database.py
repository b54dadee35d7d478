"""What is stored is found again, and by nothing but its keys."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from peakward.records.errors import PeakwardError
from peakward.records.measurement import Protocol
from peakward.store.database import Store, StudyEntry, id_of

LATER = "2026-11-21T11:00:00+00:00"


def test_a_measurement_is_found_by_case_protocol_and_environment(
    make: SimpleNamespace, path: Path
) -> None:
    stored = make.measurement()
    key = stored.environment.key
    with Store.open(path) as store:
        store.add_measurement(stored)
        assert store.measurement(make.case(), Protocol(), key) == stored
        assert store.measurement(make.case("other"), Protocol(), key) is None
        assert store.measurement(make.case(), Protocol(warmup_steps=0), key) is None
        assert store.measurement(make.case(), Protocol(), "elsewhere") is None


def test_a_time_out_is_no_other_way_to_measure(make: SimpleNamespace, path: Path) -> None:
    key = make.environment().key
    with Store.open(path) as store:
        store.add_measurement(make.measurement(protocol=Protocol(timeout_s=60)))
        for timeout_s in (30, 60, 600):
            assert store.measurement(make.case(), Protocol(timeout_s=timeout_s), key) is not None


def test_what_timed_out_is_tried_again_where_there_is_more_time(
    make: SimpleNamespace, path: Path
) -> None:
    key = make.environment().key
    with Store.open(path) as store:
        gave_up = make.measurement(
            protocol=Protocol(timeout_s=60), status="timeout", summary=None, reason="not done"
        )
        store.add_measurement(gave_up)
        assert store.measurement(make.case(), Protocol(timeout_s=60), key) == gave_up
        assert store.measurement(make.case(), Protocol(timeout_s=30), key) == gave_up
        assert store.measurement(make.case(), Protocol(timeout_s=61), key) is None


def test_an_integer_finds_the_float_that_it_equals(make: SimpleNamespace, path: Path) -> None:
    with Store.open(path) as store:
        store.add_measurement(make.measurement(protocol=Protocol(max_timed_s=3)))
        key = make.environment().key
        assert store.measurement(make.case(), Protocol(max_timed_s=3.0), key) is not None


def test_what_is_stored_outlives_the_store(make: SimpleNamespace, path: Path) -> None:
    stored = make.measurement()
    with Store.open(path) as store:
        store.add_measurement(stored)
    with Store.open_read_only(path) as store:
        found = store.measurement(stored.case, stored.protocol, stored.environment.key)
    assert found == stored


def test_the_latest_measurement_counts(make: SimpleNamespace, path: Path) -> None:
    with Store.open(path) as store:
        store.add_measurement(make.measurement("late", started_at=LATER))
        store.add_measurement(make.measurement("early"))
        store.add_measurement(make.measurement("late again", started_at=LATER))
        found = store.measurement(make.case(), Protocol(), make.environment().key)
    assert found is not None
    assert found.id == "late again"


def test_another_unit_of_the_same_device_shares_its_measurements(
    make: SimpleNamespace, path: Path
) -> None:
    with Store.open(path) as store:
        store.add_measurement(make.measurement(environment=make.environment(device_uuid="GPU-1")))
        key = make.environment(device_uuid="GPU-2").key
        assert store.measurement(make.case(), Protocol(), key) is not None


@pytest.mark.parametrize(
    ("status", "reason", "final"),
    [
        ("oom", "needed 2 GiB more than the limit", True),
        ("timeout", "longer than 600 s", True),
        ("crashed", "interrupted by Ctrl-C", False),
        ("crashed", "killed by SIGSEGV while timing", True),
        ("crashed", "killed by SIGKILL while timing, 12 steps done: said before", False),
        ("crashed", "exited with code 1 while starting: no such file", False),
        ("timeout", "not done after 5 s, while starting; other work held the device", False),
        ("oom", "killed by the kernel's OOM killer while building", False),
    ],
)
def test_what_was_stored_before_it_said_who_ended_it_is_final_by_its_reason(
    make: SimpleNamespace, path: Path, status: str, reason: str, final: bool
) -> None:
    """Its row says that it is: that column was written by the rule of its time, interruptions alone."""
    with Store.open(path) as store:
        store.add_measurement(make.measurement(status=status, reason=reason))
        if not reason.startswith("interrupted"):
            store._connection.execute("UPDATE measurement SET final = 1")
        found = store.measurement(make.case(), Protocol(), make.environment().key)
    assert (found is not None) == final


@pytest.mark.parametrize(
    ("ended_by", "final"), [("case", True), ("outside", False), ("user", False)]
)
@pytest.mark.parametrize("status", ["oom", "timeout", "crashed", "invalid"])
def test_only_what_the_case_itself_ended_is_final(
    make: SimpleNamespace, path: Path, status: str, ended_by: str, final: bool
) -> None:
    """Whatever the reason says: it is prose."""
    reason = "interrupted by Ctrl-C" if final else "it ended"
    with Store.open(path) as store:
        store.add_measurement(make.measurement(status=status, reason=reason, ended_by=ended_by))
        found = store.measurement(make.case(), Protocol(), make.environment().key)
    assert (found is not None) == final


def test_an_interruption_does_not_hide_an_earlier_result(make: SimpleNamespace, path: Path) -> None:
    with Store.open(path) as store:
        store.add_measurement(make.measurement("done"))
        store.add_measurement(
            make.measurement("cut", status="crashed", reason="interrupted", started_at=LATER)
        )
        found = store.measurement(make.case(), Protocol(), make.environment().key)
    assert found is not None
    assert found.id == "done"


def test_a_confirmed_trial_is_preferred_to_a_later_screened_one(
    make: SimpleNamespace, path: Path
) -> None:
    wanted = ("bf16", make.model_case(4), make.model_case(8), "here")
    with Store.open(path) as store:
        assert store.trial(*wanted) is None
        for id_, stage, expected in [
            ("r", "refused", "r"),
            ("c1", "confirmed", "c1"),
            ("s", "screened", "c1"),
            ("c2", "confirmed", "c2"),
            ("r2", "refused", "c2"),
        ]:
            store.add_trial(make.trial(id_, stage=stage))
            found = store.trial(*wanted)
            assert found is not None
            assert found.id == expected


def test_a_trial_is_found_by_lever_base_candidate_and_environment(
    make: SimpleNamespace, path: Path
) -> None:
    base, candidate = make.model_case(4), make.model_case(8)
    with Store.open(path) as store:
        store.add_trial(make.trial())
        assert store.trial("bf16", base, candidate, "here") == make.trial()
        assert store.trial("tf32", base, candidate, "here") is None
        assert store.trial("bf16", candidate, base, "here") is None
        assert store.trial("bf16", base, base, "here") is None
        assert store.trial("bf16", base, candidate, "there") is None


def test_all_trials_come_oldest_first_and_their_environment_by_its_key(
    make: SimpleNamespace, path: Path
) -> None:
    measured = make.measurement()
    trials = [make.trial("t1"), make.trial("t2", environment_key=measured.environment.key)]
    with Store.open(path) as store:
        for each in trials:
            store.add_trial(each)
        store.add_measurement(measured)
        assert [trial for _, trial in store.trials()] == trials
        assert store.environment(measured.environment.key) == measured.environment
        assert store.environment("here") is None


def test_the_latest_calibration_of_an_environment_counts(make: SimpleNamespace, path: Path) -> None:
    late, early = make.calibration(started_at=LATER), make.calibration()
    with Store.open(path) as store:
        for calibration in (late, early, early):
            store.add_calibration(calibration)
        assert store.calibration(make.environment().key) == late
        assert store.calibration("elsewhere") is None


def test_the_same_record_twice_is_stored_once(make: SimpleNamespace, path: Path) -> None:
    with Store.open(path) as store:
        for _ in range(2):
            store.add_measurement(make.measurement())
            store.add_trial(make.trial())
            store.add_calibration(make.calibration())
            store.add_study(make.study())
        counts = [
            store._connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("measurement", "trial", "calibration", "study")
        ]
    assert counts == [1, 1, 1, 1]


def test_another_record_of_the_same_id_is_refused(make: SimpleNamespace, path: Path) -> None:
    with Store.open(path) as store:
        store.add_measurement(make.measurement("m1"))
        with pytest.raises(
            PeakwardError, match=r"expected one measurement of each id, got a second m1"
        ):
            store.add_measurement(make.measurement("m1", wall_s=7.0))
        found = store.measurement(make.case(), Protocol(), make.environment().key)
    assert found == make.measurement("m1")


def test_a_record_that_could_not_be_read_back_is_not_written(
    make: SimpleNamespace, path: Path
) -> None:
    with Store.open(path) as store:
        with pytest.raises(PeakwardError, match=r"got `null` - at `\$.wall_s` of the Measurement"):
            store.add_measurement(make.measurement(wall_s=float("inf")))
        assert store.measurement(make.case(), Protocol(), make.environment().key) is None


def test_a_study_grows_and_never_shrinks(make: SimpleNamespace, path: Path) -> None:
    begun = make.study(complete=False, wall_s=3.0)
    more = make.study(complete=False, wall_s=8.0, notes=("more",))
    done = make.study(complete=True, wall_s=5.0, notes=("done",))
    with Store.open(path) as store:
        for added, expected in [
            (begun, begun),
            (more, more),
            (begun, more),
            (done, done),
            (more, done),
        ]:
            store.add_study(added)
            assert store.study("s1") == expected
        assert len(store.studies()) == 1


def test_studies_are_listed_newest_first(make: SimpleNamespace, path: Path) -> None:
    with Store.open(path) as store:
        assert store.studies() == ()
        store.add_study(make.study("late", started_at=LATER, complete=False))
        store.add_study(make.study("early"))
        listed = store.studies()
        assert store.study("last").id == "late"
    assert [entry.id for entry in listed] == ["late", "early"]
    assert listed[0].complete is False
    assert (listed[1].name, listed[1].title, listed[1].complete) == (
        "run",
        "How fast tiny runs",
        True,
    )
    assert listed[1].started_at == "2026-11-21T10:00:00+00:00"


def test_a_reader_sees_what_a_writer_beside_it_stores(make: SimpleNamespace, path: Path) -> None:
    wanted = (make.case(), Protocol(), make.environment().key)
    with Store.open(path) as writer, Store.open_read_only(path) as reader:
        assert reader.measurement(*wanted) is None
        writer.add_measurement(make.measurement())
        assert reader.measurement(*wanted) == make.measurement()


def test_a_reader_cannot_write(make: SimpleNamespace, path: Path) -> None:
    Store.open(path).close()
    with (
        Store.open_read_only(path) as reader,
        pytest.raises(PeakwardError, match="expected a file that may be written"),
    ):
        reader.add_measurement(make.measurement())


def test_a_path_with_odd_characters_is_that_file(make: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "50% of #1? é.db"
    with Store.open(path) as store:
        store.add_study(make.study())
    with Store.open_read_only(path) as store:
        assert store.study("last").id == "s1"
    assert path.is_file()


def test_a_link_and_its_target_are_one_database(make: SimpleNamespace, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "peakward.db")
    with (
        Store.open(tmp_path / "peakward.db"),
        pytest.raises(PeakwardError, match="wait for it to end"),
    ):
        Store.open(link)


def test_recorded_memory_is_found_by_case_and_environment(
    make: SimpleNamespace, path: Path
) -> None:
    with Store.open(path) as store:
        store.add_memory(make.case_memory("early"))
        store.add_memory(make.case_memory("late"))
        assert store.memory(make.model_case(), "here") == make.case_memory("late")
        assert store.memory(make.model_case(8), "here") is None
        assert store.memory(make.model_case(), "there") is None


def test_a_profile_is_found_by_case_steps_and_environment(
    make: SimpleNamespace, path: Path
) -> None:
    with Store.open(path) as store:
        store.add_profile(make.profile("early"))
        store.add_profile(make.profile("late"))
        store.add_profile(make.profile("late"))
        found = store.profile(make.model_case(), 3, "here")
        assert found == make.profile("late")
        assert store.profile(make.model_case(8), 3, "here") is None
        assert store.profile(make.model_case(), 1, "here") is None
        assert store.profile(make.model_case(), 3, "there") is None


def test_a_trace_is_kept_beside_the_database(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "scratch.json.gz"
    file.write_bytes(b"a trace")
    with Store.open(path) as store:
        name = store.keep(file)
        assert store.path_of(name).read_bytes() == b"a trace"
    assert not file.exists()


DB = Path("peakward.db")


def entries(*ids: str) -> list[StudyEntry]:
    return [StudyEntry(id=id_, name="run", title="", started_at="", complete=True) for id_ in ids]


@pytest.mark.parametrize(
    ("ref", "id_"),
    [
        ("last", "abc1"),
        ("abc1", "abc1"),
        ("abc2", "abc2"),
        ("b", "b"),
        ("q", "qrs"),
        ("abc", "abc"),
    ],
)
def test_a_reference_is_an_id_its_only_beginning_or_last(ref: str, id_: str) -> None:
    assert id_of(ref, entries("abc1", "abc2", "b", "bc", "qrs", "abc"), DB) == id_


@pytest.mark.parametrize(
    ("ref", "told"),
    [
        ("ab", "got 'ab', 2 that begin so: name one, such as abc1, abc2"),
        ("", "got '', 3 that begin so"),
        ("x", "got 'x', no such one: name one, such as abc1, abc2, q"),
        ("%", "got '%', no such one"),
    ],
)
def test_any_other_is_refused_with_the_ids_there_are(ref: str, told: str) -> None:
    with pytest.raises(PeakwardError) as caught:
        id_of(ref, entries("abc1", "abc2", "q"), DB)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_database_says_how_to_fill_it() -> None:
    with pytest.raises(PeakwardError, match=r"got none stored yet: `peakward run` makes one"):
        id_of("last", [], DB)
