"""The dashboard in a browser: every page, in both themes and at two widths, and what a person does there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from forerun.server.tokens import create_token
from forerun.store import open_store
from tests.server.conftest import Client
from tests.web.conftest import HOSTILE, RUN, Watched, answer_with, started

JOB = "workload=resnet50&cluster=1x8xa100-sxm-80gb&framework=pytorch&count=90&unit=epochs"
OTHER = JOB.replace("a100", "h100")
BODY = {
    "workload": "resnet50",
    "cluster": "1x8xa100-sxm-80gb",
    "framework": "pytorch",
    "epochs": 90,
}
PAGES = {
    "ask": f"ask?{JOB}&deadline=24h&budget=500",
    "recommend": "recommend?workload=resnet50&clusters=1x8xa100-sxm-80gb,h100-sxm-80gb&framework=pytorch&count=90&unit=epochs&deadline=24h",
    "scale": f"scale?{JOB.replace('a100-sxm-80gb', 'v100-sxm2-16gb')}&most=2&global_batch=1024",
    "compare": "compare?" + "&".join(f"job={j.replace('&', '%26').replace('=', '%3D')}" for j in (JOB, OTHER)),
    "tasks": "tasks",
    "runs": "runs",
    "leaderboard": "leaderboard",
    "audit": "audit",
    "catalogue": "catalogue?list=instances&search=h100",
}  # fmt: skip
TASK = {
    "id": "0123456789abcdef", "what": "train", "state": "running", "created": "2026-11-28T10:00:00+00:00",
    "started": "2026-11-28T10:00:01+00:00", "ended": None, "asked": {"name": HOSTILE},
    "progress": {"done": 1, "of": 4, "note": "epoch 1", "eta_seconds": {"p05": 60, "p50": 90, "p95": 240}},
    "problem": None,
}  # fmt: skip
SCORE = {
    "rows": 50,
    "median_ape": 8.2,
    "mape": 9.4,
    "coverage": 0.88,
    "coverage_low": 0.76,
    "coverage_high": 0.94,
}
BOARD = {"kind": "leaderboard", "entries": [
    {"table": "mine", "predictor": name, "split": "random", "score": SCORE, "share": 1.0, "best": name == "auto", "reason": ""}
    for name in ("auto", "ernest")
]}  # fmt: skip


# The result of a real encoder task, without what the page does not read.
ENCODED = {
    "kind": "encoder", "predictor": "predictddl", "out": "graphs", "runs": {"rows": 12, "rows_that_teach_time": 12},
    "losses": [0.14989671111106873, 0.0042249010875, 4.9628869902562656e-09],
}  # fmt: skip
ENDED = {"state": "done", "ended": "2026-11-28T10:05:00+00:00", "progress": {**TASK["progress"], "done": 200, "of": 200}}  # fmt: skip


GAP = "\N{NO-BREAK SPACE}"  # between a number and its unit


def words_of(page: Any, selector: str = "main") -> str:
    """Return what a part of a page says, with plain spaces."""
    return str(page.inner_text(selector)).replace(GAP, " ")


def simulated(page: Any) -> None:
    """Answer tasks, leaderboard and audit log as documented, whatever has been done on the service."""
    answer_with(page, "tasks?*", {"kind": "tasks", "tasks": [TASK]})
    answer_with(page, "leaderboard", BOARD)
    line = {"time": "2026-11-28T10:00:00.000+00:00", "client": "127.0.0.1", "path": "/v1/predict", "inputs": "ab" * 32, "status": 200, "model": "analytic", "prices": "commit 0"}  # fmt: skip
    answer_with(page, "audit?*", {"kind": "audit", "lines": [line]})


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_every_page_opens_in_both_themes_at_both_widths_without_a_serious_finding_of_axe(
    watched: Callable[..., Watched], width: int, theme: str
) -> None:
    import axe_playwright_python

    axe = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()
    seen = watched(width, theme)
    simulated(seen.page)
    seen.page.add_init_script(axe)
    page = seen.open("ask")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == (theme == "dark")
    for name, address in PAGES.items():
        page.click(f"nav[aria-label=Pages] a[href='#/{name}']")
        seen.settled()
        assert page.get_attribute("nav [aria-current=page]", "href") == f"#/{name}"
        seen.open(address)
        assert page.locator("[role=alert]").count() == 0, page.inner_text("main")
        over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(over) <= 0, f"{name} scrolls sideways"
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        grave = [
            (one["id"], [node["html"][:200] for node in one["nodes"]])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert not grave, f"{name}: {grave}"


def test_on_a_phone_the_answer_comes_before_the_question(watched: Callable[..., Watched]) -> None:
    from playwright.sync_api import expect

    seen = watched(400)
    page = seen.open("ask")
    expect(page.get_by_label("Workload")).to_be_visible()
    seen.open(PAGES["ask"])
    expect(page.get_by_label("Workload")).to_be_hidden()
    assert page.locator("dl.keys").bounding_box()["y"] < 500
    page.get_by_text("Change the question").click()
    page.get_by_label("Length", exact=True).fill("45")
    page.get_by_role("button", name="Ask", exact=True).click()
    page.wait_for_function("() => location.hash.includes('count=45')")
    seen.settled()
    expect(page.get_by_label("Workload")).to_be_hidden()
    assert "45 epochs" in page.inner_text(".title")


def test_a_person_asks_the_main_question_by_keyboard(
    watched: Callable[..., Watched], service: Client
) -> None:
    seen = watched()
    page = seen.open("ask")
    page.get_by_label("Workload").fill("resnet50")
    page.get_by_label("Cluster").fill("1x8xa100-sxm-80gb")
    page.get_by_label("Length", exact=True).fill("90")
    page.get_by_label("Unit").select_option("epochs")
    page.get_by_label("Framework").select_option("pytorch")
    page.keyboard.press("Tab")
    page.get_by_label("Workload").press("Enter")
    page.wait_for_selector(".bars")
    seen.settled()
    told = service.post("/v1/predict", BODY).json
    hours = told["wall_seconds"]["p50"] / 3600
    assert f"{float(f'{hours:.3g}'):g} h" in words_of(page, "dl.keys")
    assert f"${told['dollars']['p50']:.2f}" in page.inner_text("dl.keys")
    assert "5–95 %" in page.inner_text("dl.keys")  # noqa: RUF001 (as printed)
    assert page.locator("table[aria-label='Parts of the median step'] tr").count() >= 4
    answer = page.inner_text("dl.keys")
    page.reload()  # its address asks it again
    page.wait_for_selector(".bars")
    assert page.inner_text("dl.keys") == answer


def test_a_slider_asks_what_if(watched: Callable[..., Watched], service: Client) -> None:
    seen = watched()
    page = seen.open(f"ask?{JOB}")
    page.get_by_role("slider", name="devices").press("ArrowRight")
    page.wait_for_selector(".then b")
    told = service.post("/v1/predict", {**BODY, "cluster": "2x8xa100-sxm-80gb"}).json
    hours = told["wall_seconds"]["p50"] / 3600
    assert "2x8xa100-sxm-80gb" in page.inner_text(".then")
    assert f"{float(f'{hours:.3g}'):g} h" in words_of(page, ".then")
    page.get_by_role("button", name="Ask this").click()
    page.wait_for_function("() => location.hash.includes('2x8xa100')")
    assert "2x8xa100-sxm-80gb" in seen.settled().inner_text("h2")


def test_a_brush_over_the_options_filters_their_table(watched: Callable[..., Watched]) -> None:
    from playwright.sync_api import expect

    page = watched().open(PAGES["recommend"])
    table = page.locator("table:has(caption:has-text('comes near it')) tbody tr")
    every = table.count()
    assert every > 2
    place = page.locator(".u-over").bounding_box()
    page.mouse.move(place["x"] + place["width"] - 3, place["y"] + place["height"] - 3)
    page.mouse.down()
    page.mouse.move(place["x"] + place["width"] * 0.5, place["y"] + 3, steps=4)
    page.mouse.up()
    page.wait_for_selector("text=All options")
    assert table.count() < every
    page.get_by_role("button", name="All options").click()
    expect(table).to_have_count(every)
    page.get_by_label("Cost at most, dollars").fill("0.01")
    expect(table).to_have_count(0)
    page.locator("summary:has-text('Refused plans')").click()
    assert "exceeds the global batch" in page.inner_text("details:has-text('Refused plans')")


def test_limits_that_nothing_meets_show_the_nearest_misses(watched: Callable[..., Watched]) -> None:
    page = watched().open(PAGES["recommend"].replace("24h", "1s"))
    assert "nothing meets these limits" in page.inner_text("h2")
    assert page.locator("table:has(caption:has-text('nearest misses')) tbody tr").count() > 0


def test_what_costs_less_than_the_best_is_named_with_the_reason(
    watched: Callable[..., Watched], service: Client
) -> None:
    seen = watched()
    page = seen.open(PAGES["recommend"] + "&minimize=time")
    asked = {
        **BODY, "clusters": ["1x8xa100-sxm-80gb", "h100-sxm-80gb"], "deadline": "24h", "minimize": "time",
    }  # fmt: skip
    del asked["cluster"]
    told = service.post("/v1/recommend", asked).json
    options = [*told["front"], *told["alternatives"]]
    cheapest = min((o["dollars"]["p50"], o["job"]["cluster"]["name"]) for o in options)
    assert cheapest[0] < told["best"]["dollars"]["p50"]
    words = words_of(page, "section:has(h3:text('Why this one'))")
    assert "the least time at 50 % confidence" in words
    assert re.search(r"costs less, \$[\d.,]+ where best costs \$[\d.,]+, and is not chosen: it takes .* ask for the least cost", words)  # fmt: skip
    cells = page.locator("table:has(caption:has-text('comes near it')) td[data-label=time]").all_inner_texts()  # fmt: skip
    assert len({cell.split()[-1] for cell in cells}) == 1  # one unit


def test_the_next_runs_are_asked_for_when_wanted(watched: Callable[..., Watched]) -> None:
    seen = watched()
    run = {
        "order": 1, "job": HOSTILE, "price": 6.648, "seconds": 1561.75, "steps": 20.0,
        "reason": "changes the choice in 54 % of what it may show", "row": {"suggested_price_unit": "dollars"},
    }  # fmt: skip
    found = {"kind": "suggestion", "runs": [run], "considered": 37, "chosen_now": "resnet50", "stop": None, "assumptions": []}  # fmt: skip
    answer_with(seen.page, "suggest", found)
    page = seen.open(PAGES["recommend"] + "&minimize=time&budget=500&confidence=0.8")
    with page.expect_request("**/v1/suggest") as sent:
        page.get_by_role("button", name="Which runs would improve this choice?").click()
    body = sent.value.post_data_json
    assert body["minimize"] == "time"
    assert body["deadline"] == "24h"
    assert body.keys().isdisjoint({"budget", "confidence"})  # a budget there is one for the runs
    page.wait_for_selector("table:has(caption:has-text('37 runs were considered'))")
    words = words_of(page, "section:has(h3:text('What to measure next'))")
    assert all(part in words for part in (HOSTILE, "$6.65", "26 min", "20", "54 %", "37 runs"))
    assert page.evaluate("window.reached") is None


def test_measured_runs_lie_on_the_scaling_curve(watched: Callable[..., Watched]) -> None:
    page = watched().open(PAGES["scale"])
    assert "4 measured runs" in page.inner_text("main")
    page.locator("summary:has-text('figures of this plot')").first.click()
    cells = page.locator("figure").first.locator("td:text-is('measured runs')")
    assert cells.count() == 4
    assert page.locator("figure [role=img]").count() == 3


def test_each_machine_has_a_curve_of_cost_of_its_own(
    watched: Callable[..., Watched], service: Client
) -> None:
    page = watched().open(PAGES["scale"])
    table = page.locator("table:has(caption:has-text('Each size'))")
    shown = dict(zip(
        table.locator("td[data-label='devices']").all_inner_texts(),
        table.locator("td[data-label='machine of the price']").all_inner_texts(), strict=True,
    ))  # fmt: skip
    assert list(shown) == ["1", "2", "4", "8", "16"]
    job = {**BODY, "cluster": "1x2xv100-sxm2-16gb", "global_batch": 1024}
    prices = service.post("/v1/predict", job).json["prices"]
    assert prices["source"].startswith(shown["2"])
    price = table.locator("td[data-label='price an hour']").nth(1).inner_text()
    assert price == f"${prices['dollars_per_hour']:.2f}"
    curves = page.locator("figure:has-text('Cost, each machine') .legend span").all_inner_texts()
    assert set(curves) == set(shown.values())
    assert len(curves) > 1


def test_eight_jobs_are_compared_and_no_more(watched: Callable[..., Watched]) -> None:
    seen = watched()
    page = seen.open(PAGES["compare"])
    while page.locator("fieldset").count() < 8:
        page.get_by_role("button", name="Add a job").click()
    assert page.get_by_role("button", name="Add a job").is_disabled()
    page.locator("fieldset").nth(7).get_by_label("Cluster").fill("1x8xnobody")
    page.locator("fieldset").nth(6).get_by_label("Plan").fill("tp=3")
    page.locator("fieldset").nth(7).get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Compare", exact=True).click()
    page.wait_for_selector("text=not divisible by tp=3")
    assert page.locator("table:has(caption:has-text('side by side')) tbody tr").count() == 6
    assert "fastest" in page.inner_text("h2")


def test_a_task_is_followed_as_it_runs_and_cancelled(watched: Callable[..., Watched]) -> None:
    seen = watched()
    simulated(seen.page)
    path = f"tasks/{TASK['id']}"
    runs = [{"workload": "mlp", "steps": n, "samples": 64 * n, "seconds": n, "dollars": None, "noise_scale": 90.0 + n, "workers": n, "global_batch": 64, "note": f"trains with {n}", "loss": 2.0 / n} for n in (1, 2, 4)]  # fmt: skip
    said = [("task", TASK), *(("run", run) for run in runs)]
    stream = "".join(f"id: {n}\nevent: {kind}\ndata: {json.dumps(data)}\n\n" for n, (kind, data) in enumerate(said, 1))  # fmt: skip
    stream += (
        f": alive\n\nid: 9\nevent: end\ndata: {json.dumps({**TASK, 'result': {'x': HOSTILE}})}\n\n"
    )
    answer_with(seen.page, path, {"task": {**TASK, "result": {"x": HOSTILE}}})
    answer_with(seen.page, f"{path}/events", stream, "text/event-stream")
    answer_with(seen.page, f"{path}/cancel", {"task": {**TASK, "state": "cancelled"}})
    page = seen.open("tasks")
    page.get_by_role("link", name="train 01234567").click()
    page.wait_for_selector("text=What happened, newest first")
    assert "1 of 4 steps: epoch 1" in page.inner_text("main")
    assert "done in 1.5 min (5–95 %: 1 min to 4 min)" in words_of(page)  # noqa: RUF001
    drawn = page.locator("figcaption").all_inner_texts()
    assert drawn == ["Convergence: loss", "Gradient noise scale", "Workers", "Global batch"]
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_selector(".tag.cancelled")
    assert page.evaluate("window.reached") is None


def test_pages_of_tasks_go_on_after_a_restart_of_the_service(
    watched: Callable[..., Watched], tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    serving = started(tmp_path, "--workers", "0")
    with serving as client, open_store(str(tmp_path / "runs.db")) as store:
        task = client.post("/v1/tasks/encoder", {"name": "graphs", "rows": [RUN]}).json["task"][
            "id"
        ]
        assert store.tasks.claim(task, "me")  # this test is the worker, which outlives the service
        row = {"steps": 10, "seconds": 3.0, "loss": 0.25}
        store.tasks.report(task, "me", 10, 200, "loss 0.2500", [row], [60.0, 90.0, 240.0])
        seen = watched(port=client.port)
        listed, page = seen.page, seen.page.context.new_page()
        seen.open("tasks")
        page.goto(f"{seen.root}/#/tasks?id={task}")
        for one in (listed, page):
            expect(one.locator(".tag.running")).to_be_visible()
            expect(one.get_by_text("done in 1.")).to_be_visible()
        serving.kill()
        for one in (listed, page):
            expect(one.get_by_role("status")).to_contain_text("the service does not answer, since")
            expect(one.locator(".tag")).to_have_text("was running")
            expect(one.get_by_text("done in")).to_have_count(0)
        expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
        row = {"steps": 20, "seconds": 6.0, "loss": 0.125}
        store.tasks.report(task, "me", 20, 200, "loss 0.1250", [row])
        expect(listed.locator("tbody tr")).to_have_count(1)
        serving.again()
        for one in (listed, page):
            expect(one.get_by_text("20 of 200")).to_be_visible(timeout=15_000)
            expect(one.get_by_role("status")).to_have_count(0)
            expect(one.locator(".tag.running")).to_be_visible()
        losses = page.locator("table:has(caption:has-text('newest first')) td[data-label=loss]")
        expect(losses).to_have_text(["0.125", "0.25"])  # none twice
        row = {"steps": 200, "seconds": 60.0, "loss": ENCODED["losses"][-1]}
        store.tasks.report(task, "me", 200, 200, "loss 0.0000", [row])
        expect(page.get_by_text("200 of 200: loss 4.96e-9")).to_be_visible()
        expect(listed.get_by_text("200 of 200: loss < 0.0001")).to_be_visible()
        store.tasks.end(task, "me", "done", ENCODED)
        for one in (listed, page):
            expect(one.locator(".tag.done")).to_be_visible()
        words = "the networks of 12 runs. Its loss was 0.15 at first and is 4.96e-9 at the end."
        expect(page.get_by_text(words)).to_be_visible()
        expect(page.locator("figcaption")).to_have_text(["Convergence: loss"])
        seen.faults.clear()  # requests that failed, as the browser logs them


def test_the_list_of_tasks_says_what_was_asked_how_far_it_is_and_why_it_failed(
    watched: Callable[..., Watched],
) -> None:
    seen = watched()
    train = {"entry": "forerun.measure.builtin:regression", "workers": [1, 2], "target": {"metric": "loss", "at_most": 0.1}, "where": [f"campaign=night-{n}" for n in range(20)]}  # fmt: skip
    live = {**TASK["progress"], "at": datetime.now(UTC).isoformat()}
    problem = {"asked": "the runs", "found": "the store has none such", "next": "send rows"}
    listed = [
        {**TASK, "asked": train, "progress": live},
        {**TASK, "id": "f" * 16, "state": "failed", "problem": problem},
        {**TASK, "id": "c" * 16, "state": "cancelled", "progress": {"done": 1, "of": 4, "note": "it is being cancelled"}},
    ]  # fmt: skip
    answer_with(seen.page, "tasks?*", {"kind": "tasks", "tasks": listed})
    texts = seen.open("tasks").locator("tbody tr").all_inner_texts()
    running, failed, cancelled = (text.replace(GAP, " ") for text in texts)
    assert "regression" in running
    assert "workers 1, 2" in running
    assert "metric loss; at most 0.1" in running
    assert "{" not in running
    assert re.search(r"at most 0.1 …\s", running + "\n")  # whole parts alone
    assert re.search(r"done in 1.\d+ min \(5–95 %: (1 min|59.\d* s) to (4|3.\d*) min\)", running)  # noqa: RUF001
    assert "the runs: the store has none such" in failed
    assert "1 of 4" in cancelled
    assert "being cancelled" not in cancelled


def test_results_say_what_was_found_and_no_cost_where_no_price_was_given(
    watched: Callable[..., Watched],
) -> None:
    seen = watched()
    campaign = {"kind": "campaign", "made": {"ok": 3}, "before": 0, "seconds": 90.0, "dollars": 0.0, "stopped": "nothing is left"}  # fmt: skip
    results = {"encoder": ENCODED, "campaign": campaign, "priced": {**campaign, "dollars": 1.5}}
    said = {}
    for number, (what, result) in enumerate(results.items()):
        task = {**TASK, **ENDED, "id": f"{number:016}", "result": result}
        task["what"] = "campaign" if what == "priced" else what
        answer_with(seen.page, f"tasks/{task['id']}", {"task": task})
        end = f"event: end\ndata: {json.dumps(task)}\n\n"
        answer_with(seen.page, f"tasks/{task['id']}/events", end, "text/event-stream")
        seen.page.goto(f"{seen.root}/#/tasks?id={task['id']}")
        seen.page.wait_for_selector("summary:has-text('Result, as JSON')")
        said[what] = words_of(seen.page)
        if what == "encoder":  # its losses are in the result, whether or not its events are kept
            steps = seen.page.locator(
                "table:has(caption:has-text('newest first')) td[data-label=steps]"
            )
            assert steps.all_inner_texts() == ["200", "133", "67"]
    assert "Its loss was 0.15 at first and is 4.96e-9 at the end" in said["encoder"]
    assert "3 ok in 1.5 min. nothing is left" in said["campaign"]
    assert "3 ok in 1.5 min, $1.50. nothing is left" in said["priced"]
    assert "unknown" not in said["encoder"]


def _onnx() -> bytes:
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    kind = onnx.TensorProto.FLOAT
    weights = make.make_tensor("w", kind, [64, 10], [0.0] * 640)
    node = make.make_node("MatMul", ["x", "w"], ["y"])
    sizes = [make.make_tensor_value_info(name, kind, [8, n]) for name, n in (("x", 64), ("y", 10))]
    graph = make.make_graph([node], "net", sizes[:1], sizes[1:], [weights])
    return bytes(make.make_model(graph).SerializeToString())


def test_files_of_each_form_are_sent_and_asked_about(watched: Callable[..., Watched]) -> None:
    files = {
        "config.json": b'{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99, "model_type": "gpt2"}',
        "mine.yaml": b"transformer: {layers: 2, hidden: 64, heads: 4, vocab: 99, seq_len: 32}",
        "net.onnx": _onnx(),
    }  # fmt: skip
    seen = watched()
    page = seen.open("ask?cluster=1x8xa100-sxm-80gb&count=100&unit=steps&global_batch=64")
    chosen = page.get_by_label("or a file of yours")
    for bad, found in (("weights.pkl", "ends in none of"), ("bad.yaml", "YAML")):
        chosen.set_input_files({"name": bad, "mimeType": "", "buffer": b"{: ["})
        page.wait_for_selector(f"[role=alert]:has-text('{found}')")
    seen.faults.clear()  # the refusal, as the browser logs it
    for name, content in files.items():
        chosen.set_input_files({"name": name, "mimeType": "", "buffer": content})
        page.wait_for_selector(f"text={name} is read")
        page.get_by_role("button", name="Ask", exact=True).click()
        page.wait_for_selector(f"h2:text('{name.split('.')[0]} on 1x8xa100-sxm-80gb')")
        assert re.search(r"workload=upload%3A[0-9a-f]{32}", page.url)
        seen.settled()


def test_a_name_with_a_script_stays_text(watched: Callable[..., Watched]) -> None:
    seen = watched()
    page = seen.open("runs")
    assert HOSTILE in page.inner_text("main")
    seen.open("ask?workload=%3Cimg%20src%3Dx%20onerror%3D%22window.reached%3Dtrue%22%3E")
    assert "onerror" in page.get_by_label("Workload").input_value()
    assert page.evaluate("window.reached") is None


def test_a_refusal_says_asked_found_and_next(watched: Callable[..., Watched]) -> None:
    seen = watched()
    page = seen.open("ask?workload=resnet5000&cluster=1x8xa100-sxm-80gb")
    words = page.inner_text("[role=alert]")
    assert all(word in words for word in ("Asked", "Found", "Next", "did you mean"))
    assert [fault for fault in seen.faults if "400" in fault]  # as the browser logs it
    seen.faults.clear()


def test_the_theme_is_switched_and_kept(watched: Callable[..., Watched]) -> None:
    page = watched(theme="light").open("ask")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_label("Theme").select_option("dark")
    page.wait_for_function(f"light => {ground} !== light", arg=light)
    page.reload()
    page.wait_for_function(f"light => {ground} !== light", arg=light)


def test_a_token_is_asked_for_once_and_kept_in_the_tab(
    watched: Callable[..., Watched], tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.json"
    secret = create_token(tokens, ["read", "predict"], 1)
    with started(tmp_path, "--tokens", str(tokens)) as client:
        assert client.get("/v1/devices").status == 401
        seen = watched(port=client.port)
        page = seen.open("ask")
        sent = []
        page.on("request", lambda r: sent.append(r.headers.get("authorization")))
        for given in ("wrong", secret):
            page.wait_for_selector("#token")
            page.fill("#token", given)
            page.keyboard.press("Enter")
            page.wait_for_timeout(300)
        seen.faults.clear()  # refusals, as the browser logs them
        seen.open(f"ask?{JOB}")
        assert page.locator("#token").count() == 0
        assert page.locator("dl.keys").count() == 1
        assert f"Bearer {secret}" in sent
        assert page.evaluate("Object.keys(localStorage)") == ["forerun-theme"]
        assert secret not in page.url
        seen.page.goto(f"{seen.root}/#/audit")  # which needs more than this token may
        page.wait_for_selector("#token")
        seen.page.goto(f"{seen.root}/#/catalogue")
        page.wait_for_selector("table")
        assert page.locator("#token").count() == 0
        seen.faults.clear()
