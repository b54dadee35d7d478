"""The HTML report in a browser: it asks for nothing, breaks no rule of its own, and sorts."""

import importlib.util
import shutil
from pathlib import Path

import msgspec
import pytest

from peakward.report.html import render
from peakward.report.study import document

pytestmark = pytest.mark.full

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
EVIL = "<script>document.title = 'owned'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("needs Debian's chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """The report of a run whose model, lever and device bear hostile names."""
    path = Path(__file__).parents[1] / "golden" / "studies.py"
    spec = importlib.util.spec_from_file_location("studies", path)
    studies = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(studies)
    study = studies.run_study()
    model = msgspec.structs.replace(studies.SHAPE, name=EVIL)

    def renamed(record, *fields):
        cases = {
            field: msgspec.structs.replace(getattr(record, field), model=model) for field in fields
        }
        return msgspec.structs.replace(record, **cases)

    study = msgspec.structs.replace(
        study,
        environment=msgspec.structs.replace(study.environment, device_name=EVIL),
        measurements=tuple(renamed(each, "case") for each in study.measurements),
        predictions=tuple(renamed(each, "case") for each in study.predictions),
        trials=tuple(
            msgspec.structs.replace(renamed(each, "base", "candidate"), lever=f"{each.lever}{EVIL}")
            for each in study.trials
        ),
    )
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(render(document(study)), encoding="utf-8")
    return file


@pytest.fixture
def opened(browser, page_file, request):
    """The page, and all that it said or asked for while it loaded."""
    options = getattr(request, "param", {})
    page = browser.new_page(**options)
    heard = {"console": [], "errors": [], "requests": [], "dialogs": [], "violations": []}
    page.on("console", lambda message: heard["console"].append(message.text))
    page.on("pageerror", lambda error: heard["errors"].append(str(error)))
    page.on("request", lambda sent: heard["requests"].append(sent.url))
    page.on("dialog", lambda dialog: (heard["dialogs"].append(dialog.message), dialog.dismiss()))
    # Playwright cannot call a built-in method.
    page.expose_function("heardViolation", lambda rule: heard["violations"].append(rule))  # noqa: PLW0108
    page.add_init_script(
        "addEventListener('securitypolicyviolation', e => heardViolation(e.violatedDirective))"
    )
    page.goto(page_file.as_uri())
    page.wait_for_load_state("networkidle")
    yield page, heard
    page.close()


def test_it_asks_for_nothing_and_breaks_no_rule(opened, page_file):
    _, heard = opened
    assert heard.pop("requests") == [page_file.as_uri()]
    assert heard == {"console": [], "errors": [], "dialogs": [], "violations": []}


def test_hostile_names_are_text(opened):
    page, heard = opened
    assert EVIL in page.inner_text("h1")
    assert EVIL in page.title()
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert heard["dialogs"] == []


def test_the_policy_holds_back_what_it_did_not_name(opened):
    page, heard = opened
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.owned = true";
            document.body.append(script);
            const image = new Image();
            image.src = "https://example.org/x.png";
            document.body.append(image);
        }"""
    )
    page.wait_for_function("() => document.images.length === 1")
    page.wait_for_timeout(200)
    assert page.evaluate("window.owned") is None
    assert {"script-src-elem", "img-src"} <= set(heard["violations"])


def test_the_levers_sort_by_value_with_blanks_last(opened):
    page, _ = opened
    table = page.locator("table.sortable")
    heads = table.locator("th").all_inner_texts()
    index = next(i for i, head in enumerate(heads) if head.startswith("speed-up"))
    head = table.locator("th").nth(index)

    def column():
        return table.locator(f"tbody tr td:nth-child({index + 1})").all_inner_texts()

    def ratios():
        return [float(text.split("×")[0]) for text in column() if "×" in text]

    before = column()
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    rising = ratios()
    assert rising == sorted(rising)
    blanks = column()[len(rising) :]
    assert blanks
    assert not any("×" in text for text in blanks)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert ratios() == rising[::-1]
    assert column()[len(rising) :] == blanks
    assert sorted(column()) == sorted(before)


@pytest.mark.parametrize(
    ("opened", "drawn"),
    [
        ({"viewport": {"width": 1280, "height": 900}}, "wide"),
        ({"viewport": {"width": 390, "height": 844}}, "narrow"),
    ],
    indirect=["opened"],
)
def test_the_page_itself_never_scrolls_sideways(opened, drawn):
    page, _ = opened
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator(f"div.{drawn} svg").first.is_visible()
    hidden = {"wide": "narrow", "narrow": "wide"}[drawn]
    assert not page.locator(f"div.{hidden} svg").first.is_visible()


@pytest.mark.parametrize(
    ("opened", "paper"),
    [
        ({"color_scheme": "light"}, "rgb(255, 255, 255)"),
        ({"color_scheme": "dark"}, "rgb(20, 23, 27)"),
    ],
    indirect=["opened"],
)
def test_light_and_dark_follow_the_reader(opened, paper):
    page, _ = opened
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
