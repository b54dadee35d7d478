"""`peakward report --ledger` over databases and files."""

import json

import pytest

from peakward.cli.main import main
from peakward.levers.catalogue import lever, pull
from peakward.records import codec
from peakward.records.lever import Foretold, Pair, Trial
from peakward.records.measurement import Interval
from peakward.store.database import Store


@pytest.fixture
def make_trial(make_measurement):
    def made(id_, ratio=0.8, key="elsewhere"):
        base = make_measurement(8).case
        return Trial(
            id=id_,
            lever="sdpa",
            base=base,
            candidate=pull(lever("sdpa"), base),
            environment_key=key,
            stage="confirmed",
            verdict="kept",
            reason="",
            pairs=(Pair(process=0, base_s=1.0, candidate_s=ratio),),
            time_ratio=Interval(estimate=ratio, low=ratio, high=ratio),
            foretold=Foretold(time_ratio=Interval(estimate=0.8, low=0.7, high=0.9)),
        )

    return made


def ledger(capsysbinary, *words):
    assert main(["report", "--ledger", *words, "--json"]) == 0
    return json.loads(capsysbinary.readouterr().out)["record"]


def test_a_database_gives_its_studies_and_its_trials(
    in_tmp, make_study, make_measurement, make_trial, capsysbinary
):
    measured = make_measurement(8)
    study = make_study(measured, trials=(make_trial("a"),))
    with Store.open(in_tmp / "peakward.db") as store:
        store.add_study(study)
        store.add_measurement(measured)
        store.add_trial(make_trial("a"))
        store.add_trial(make_trial("b", 0.9, key=measured.environment.key))
    found = ledger(capsysbinary)
    assert found["n_trials"] == 2
    assert [(each["device"], each["n_trials"]) for each in found["entries"]] == [("Example CPU", 2)]


def test_files_are_read_together(in_tmp, make_study, make_measurement, make_trial, capsysbinary):
    study = make_study(make_measurement(8), trials=(make_trial("a"),))
    (in_tmp / "one.json").write_bytes(codec.to_json(study))
    with Store.open(in_tmp / "two.db") as store:
        store.add_trial(make_trial("b", 0.9))
    found = ledger(capsysbinary, "one.json", "two.db")
    assert found["sources"] == ["one.json", "two.db"]
    assert {each["device"] for each in found["entries"]} == {
        "Example CPU",
        "a device of which no measurement is stored",
    }


def test_all_views_are_written(in_tmp, make_study, make_measurement, make_trial, capsys):
    study = make_study(make_measurement(8), trials=(make_trial("a"),))
    (in_tmp / "one.json").write_bytes(codec.to_json(study))
    words = ["report", "--ledger", "one.json", "--markdown", "l.md", "--html", "l.html"]
    assert main(words) == 0
    assert "Levers: predicted and measured" in capsys.readouterr().out
    for name in ("l.md", "l.html"):
        assert "interval held" in (in_tmp / name).read_text()


def test_wrong_names_are_refused(in_tmp, capsys):
    assert main(["report", "--ledger", "nowhere.json"]) == 2
    assert "'nowhere.json', which is no file" in capsys.readouterr().err
    assert main(["report", "--ledger"]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["report", "a", "b"]) == 2
    assert "add --ledger" in capsys.readouterr().err
    assert main(["report", "--list", "--ledger"]) == 2
