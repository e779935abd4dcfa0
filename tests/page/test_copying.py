"""What the page copies: a case as an issue, the address of what is shown, and where that fails."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fakes.browser import Browser
from fakes.page_cases import simulated
from fakes.page_stage import Stage, page_stage, put_run

ENTER, TAB = "\ue007", "\ue004"
RUN = "run-of-two"
SECRETS = ("gpu-box", "10.7.0.3", "hunter2", "jane", "GPU-1234", "acme", "home.lan")


def allow_clipboard(browser: Browser, stage: Stage) -> None:
    browser.driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": stage.url},
    )


def clipboard(browser: Browser) -> str:
    return str(
        browser.driver.execute_async_script(
            "navigator.clipboard.readText().then(arguments[arguments.length - 1])"
        )
    )


def button(browser: Browser, label: str) -> Any:
    return browser.until(lambda: next((b for b in browser.all("button") if b.text == label), None))


def folded(issue: str) -> Any:
    """The JSON under the fold."""
    found = re.search(r"<details>.*?```json\n(.*?)\n```\n\n</details>", issue, flags=re.DOTALL)
    assert found, issue
    return json.loads(found[1])


def test_a_request_is_copied_as_an_issue_with_keys_alone(browser: Browser, stage: Stage) -> None:
    [record] = stage.put(simulated("thermal-throttle"))
    browser.open(f"{stage.page}#request/{record['id']}")
    allow_clipboard(browser, stage)
    button(browser, "Copy as issue")

    browser.press(TAB, TAB, ENTER)  # the link back, then the button
    browser.until(lambda: browser.text("#announcer") == "Copied")

    assert browser.run("return document.activeElement.innerText") == "Copied"
    issue = clipboard(browser)
    [finding] = record["findings"]
    assert issue.startswith("## slowtok: slow in decode\n")
    assert f"### {finding['cause']}" in issue
    for said in (
        "- Engine: vllm 0.8.5",
        "- GPU 0: NVIDIA A100-SXM4-80GB, 80 GiB, driver 580.95",
        "- slowtok: 0.",
        "- Decode: 202 tok/s, expected 239 to 356 tok/s",
        "| decode | 14.8 s |",
        "| processor clock | 750 MHz | 1,339 MHz |",
    ):
        assert said in issue
    found = folded(issue)
    assert found["findings"] == record["findings"]
    assert found["timing"] == record["timing"]
    assert "url" not in found["upstream"]


def private() -> dict[str, Any]:
    """A record with names and addresses wherever text stands."""
    where = "http://jane:hunter2@gpu-box.home.lan:8080/v1?key=hunter2"
    said = f"gpu-box.home.lan at 10.7.0.3:8080 ({where}) reads /home/jane/models"
    return {
        "id": "r",
        "ts": "2027-01-15T08:00:00.000+00:00",
        "model": "/home/jane/models/m.gguf",
        "path": "/run/acme/v1/chat/completions?key=hunter2",
        "upstream": {"name": "acme", "kind": "vllm", "url": where, "version": "0.8.5"},
        "verdict": "slow",
        "phase": "decode",
        "run": {"id": "7f", "by": "header", "name": "acme", "turn": 1},
        "findings": [
            {
                "cause": "queued",
                "confidence": 0.9,
                "lost_ms": 1000,
                "phase": "decode",
                "summary": said,
                "evidence": [{"name": "slots", "value": 1.0, "unit": "slots"}],
                "remedy": f"slowtok --upstream {where}",
            }
        ],
        "cleared": [],
        "not_visible": [{"fact": "host", "how_to_enable": said}],
        "gpu": [{"index": 0, "name": "card", "uuid": "GPU-1234"}],
        "host": {"samples": 0, "why": said},
    }


def test_an_issue_names_no_host_person_or_key(browser: Browser, stage: Stage) -> None:
    browser.open(stage.page)
    record = private()
    status = {"engines": [{"url": "http://gpu-box:8080", "local": False}], "version": "0.2.0"}
    record["reason"] = "gpu-box does not answer"

    issue = browser.module("issue", "it.requestIssue(given[0], given[1])", record, status)

    assert [secret for secret in SECRETS if secret in issue] == []
    assert folded(issue)["model"] == "~/models/m.gguf"
    assert folded(issue)["path"] == "/run/…/v1/chat/completions"
    assert "- slowtok: 0.2.0" in issue


def test_text_from_outside_is_no_markup_in_an_issue(browser: Browser, stage: Stage) -> None:
    browser.open(stage.page)
    record = {"model": "<b>|`@you` #7\n## no", "verdict": "unknown", "reason": "*x*"}

    issue = browser.module("issue", "it.requestIssue(given[0], null)", record)

    before, _, _ = issue.partition("<details>")
    assert "- Model: \\<b\\>\\|\\`@\u200byou\\` #\u200b7 #\u200b#\u200b no\n" in before
    assert "Why there is no verdict: \\*x\\*\n" in before
    assert folded(issue)["model"] == record["model"]


def test_the_text_lies_there_selected_where_copying_is_refused(
    browser: Browser, stage: Stage
) -> None:
    [record] = stage.put(simulated("queued"))
    browser.open(f"{stage.page}#request/{record['id']}")
    wanted = button(browser, "Copy as issue")
    browser.run(
        "navigator.clipboard.writeText = () => Promise.reject(new Error('refused'));"
        "document.execCommand = () => false;"
    )

    wanted.click()

    browser.says("#announcer", "refuses to copy. The text is selected")
    chosen = browser.run(
        "const e = document.activeElement;"
        "return [e.tagName, e.value.slice(e.selectionStart, e.selectionEnd)]"
    )
    assert chosen[0] == "TEXTAREA"
    assert folded(chosen[1])["id"] == record["id"]
    browser.size(360, 800)
    assert browser.overflow() == []


def test_a_run_is_opened_by_its_link_and_copied_as_an_issue(browser: Browser, stage: Stage) -> None:
    put_run(stage, RUN, "acme", "acme")
    browser.open(f"{stage.page}#runs/{RUN}")
    allow_clipboard(browser, stage)
    browser.says("#view-runs h1", "Run acme: slow")

    button(browser, "Copy as issue").click()
    browser.until(lambda: browser.text("#announcer") == "Copied")

    issue = clipboard(browser)
    assert issue.startswith("## slowtok: a run of 2 requests, slow\n")
    assert "**Fix first: prompt-cache-miss** (lost 4.00 s)" in issue
    assert "| prefill" in issue
    run = folded(issue)
    assert len(run["turns"]) == 2
    assert "name" not in run
    assert "acme" not in issue


def test_a_request_leads_to_its_run(browser: Browser, stage: Stage) -> None:
    [record] = stage.put(simulated("queued"))
    put_run(stage, RUN, "acme", "acme")
    stage.served.proxy.records.add(record | {"run": {"id": RUN, "by": "header", "turn": 2}})
    browser.open(f"{stage.page}#request/{record['id']}")

    browser.find(f'#view-request a[href="#runs/{RUN}"]').click()

    browser.says("#view-runs h1", "Run acme: slow")


def test_focus_stays_where_a_run_goes_on(browser: Browser, stage: Stage) -> None:
    put_run(stage, RUN, "acme", "acme")
    browser.open(f"{stage.page}#runs/{RUN}")
    button(browser, "Copy link")
    browser.run(
        "document.querySelectorAll('.share button')[1].focus();window.kept = document.activeElement"
    )

    put_run(stage, RUN, "acme", "acme")  # the same turns once more: the run has grown

    browser.says("#view-runs", "4 requests")
    assert browser.run("return document.activeElement === window.kept")


@pytest.mark.parametrize("kind", ["request", "runs"])
def test_a_copied_link_opens_the_same_again_and_holds_no_key(
    kind: str, opened: Browser, tmp_path: Path
) -> None:
    key = "k" * 20
    with page_stage(tmp_path, api_key=key) as stage:
        [record] = stage.put(simulated("queued"))
        put_run(stage, RUN, "acme", "acme")
        where = record["id"] if kind == "request" else RUN
        opened.open(stage.page.replace("://", f"://me:{key}@") + f"#{kind}/{where}")
        allow_clipboard(opened, stage)
        button(opened, "Copy link").click()
        opened.until(lambda: opened.text("#announcer") == "Copied")

        link = clipboard(opened)
        title = opened.text(f"#view-{kind} h1")
        opened.open(link)  # the browser knows the key by now

        assert link == f"{stage.page}#{kind}/{where}"
        opened.says(f"#view-{kind} h1", title)
        opened.driver.get("about:blank")
    opened.complaints()
