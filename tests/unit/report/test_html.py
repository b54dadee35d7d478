import base64
import hashlib
import re
from html.parser import HTMLParser

import msgspec
import pytest

from peakward.report.html import render
from peakward.report.study import document

EVIL = "<script>alert(1)</script>\"'&"


class Page(HTMLParser):
    """Tags, and what stood between those of script and style."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.inside, self.data = [], None, {"script": [], "style": []}
        self.policy = None
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        self.inside = tag
        if attrs.get("http-equiv") == "Content-Security-Policy":
            self.policy = attrs["content"]

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside in self.data:
            self.data[self.inside].append(data)
        else:
            self.text += data


@pytest.fixture(params=["run_study", "bench_study"])
def study(request):
    return request.getfixturevalue(request.param)


def test_the_policy_allows_our_style_and_script_and_nothing_else(study):
    page = Page(render(document(study)))
    rules = dict(rule.split(" ", 1) for rule in page.policy.split("; "))
    assert rules["default-src"] == "'none'"
    for kind in ("style", "script"):
        (content,) = page.data[kind]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"
    assert "unsafe" not in page.policy


def test_the_page_holds_everything_itself(study):
    text = render(document(study))
    for tag, attrs in Page(text).tags:
        assert "src" not in attrs, tag
        assert not any(name.startswith("on") or name == "style" for name in attrs), tag
        assert attrs.get("href", "data:,") == "data:,", tag
    assert "@import" not in text
    assert "url(" not in text


def evil(study, studies):
    """The study with a name that is markup wherever a name can stand."""
    model = msgspec.structs.replace(studies.SHAPE, name=EVIL)
    here = msgspec.structs.replace(study.environment, device_name=EVIL)

    def renamed(case):
        return msgspec.structs.replace(case, model=model)

    return msgspec.structs.replace(
        study,
        title=EVIL,
        command=EVIL,
        best_command=EVIL,
        notes=(EVIL,),
        environment=here,
        measurements=tuple(
            msgspec.structs.replace(each, case=renamed(each.case), reason=EVIL)
            for each in study.measurements
        ),
        trials=tuple(
            msgspec.structs.replace(
                each,
                lever=EVIL,
                reason=EVIL,
                base=renamed(each.base),
                candidate=renamed(each.candidate),
            )
            for each in study.trials
        ),
        tables=tuple(
            msgspec.structs.replace(
                table, title=EVIL, note=EVIL, rows=((EVIL, *row[1:]) for row in table.rows)
            )
            for table in study.tables
        ),
        plots=tuple(
            msgspec.structs.replace(
                plot,
                title=EVIL,
                y_label=EVIL,
                series=tuple(msgspec.structs.replace(each, name=EVIL) for each in plot.series),
            )
            for plot in study.plots
        ),
    )


def test_a_name_never_becomes_markup(study, studies):
    page = Page(render(document(evil(study, studies))))
    assert len(page.data["script"]) == 1
    assert "alert" not in page.data["script"][0]
    assert EVIL in page.text


def test_numbers_carry_their_value_for_sorting(run_study):
    text = render(document(run_study))
    assert re.search(r'<td class="number" data-value="1\.004">1\.00 s</td>', text)
    assert text.count('class="sortable"') == 1


def test_words_that_are_verdicts_are_marked(run_study):
    text = render(document(run_study))
    assert '<span class="mark-good">gain confirmed</span>' in text
    assert '<span class="mark-bad">oom</span>' in text
    assert '<span class="none">–</span>' in text


def test_each_plot_is_drawn_for_a_desk_and_for_a_phone(run_study):
    text = render(document(run_study))
    assert text.count("<svg ") == 4
    assert text.count('<div class="narrow">') == text.count('<div class="wide">') == 2
