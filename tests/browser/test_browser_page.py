"""The page of a run in a real browser: what it shows, who may read it, and that it is usable by keyboard and readers."""

from __future__ import annotations

import hashlib
import http.client
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from recorded import HOSTILE, Recorded
from selenium.webdriver.common.keys import Keys

from coordinator_free_bootstrap import save_graph
from peer.store.history import read_history
from peer.store.state_dir import StateDir

pytestmark = pytest.mark.browser
VENDOR = Path(__file__).with_name("vendor")


def report(directory: Path) -> dict:
    command = [sys.executable, "-m", "peer", "report", directory, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_the_final_header_equals_the_report(tab, page, bed):
    run = bed(peers=4, rounds=4, task="digits")
    run.finish()
    said = report(run.directory)
    with page(run.directory) as link:
        tab.open(link())
        for field in ("metric_mean", "metric_worst", "metric_p10", "cluster_ari", "payload_bytes_sent", "rounds"):
            assert tab.number(field) == pytest.approx(said[field], abs=0), field
        assert tab.text("#numbers [data-field=metric_mean]") == f"{said['metric_mean']:.3f}"
        assert tab.text("[data-field=mode]") == "ended"
        for row in said["peers"]:
            cells = f'#table tr[data-peer="{row["peer_id"]}"] [data-field='
            assert tab.text(f"{cells}round]") == str(row["rounds_completed"])
            assert tab.text(f"{cells}metric]") == f"{row['metric_value']:.3f}"
            assert tab.text(f"{cells}status]") == row["status"]


def test_a_killed_peer_appears_and_the_rest_goes_on(tab, page, bed):
    run = bed(peers=4, rounds=2000, kind="complete", timeouts={"suspicion_s": 2.0})
    with page(run.directory) as link:
        run.until_round(2)
        tab.open(link())
        assert tab.text("[data-field=mode]") == "live"
        assert run.do("kill", 2) == "done"
        tab.wait(
            lambda: tab.find('.node[data-peer="2"]').get_attribute("data-down") == "yes", "the graph shows the kill"
        )
        at = tab.number("rounds")
        status = '#table tr[data-peer="2"] [data-field=status]'
        tab.wait(lambda: tab.text(status) == "dead, signal 9", "the table says how the process ended")
        assert "1 dead" in tab.text("#numbers")
        tab.wait(lambda: tab.texts('.events [data-kind="dead"][data-peer="2"]'), "the timeline names the death")
        tab.wait(lambda: tab.number("rounds") > at, "the others complete rounds")
        run.until(lambda: run.saw(0, 2, "dead"), "peer 0 marks peer 2 dead")
        run.stop()
        tab.wait(
            lambda: tab.text("[data-field=mode]") == "ended: incomplete", "the header says that the run is not complete"
        )


def test_a_replay_shows_the_lines_of_the_histories(tab, page, recorded):
    recorded.complete(12)
    recorded.end()
    with page(recorded.directory) as link:
        tab.open(link())
        for index in (0, 1, 7, 11):
            tab.seek(index)
            lines = [
                next(line for line in read_history(StateDir.of_peer(recorded.directory, p).history)
                     if line["kind"] == "round" and line["round_index"] == index)
                for p in recorded.graph.ids
            ]  # fmt: skip
            for peer_id, line in enumerate(lines):
                row = f'#table tr[data-peer="{peer_id}"] [data-field='
                value = tab.find(f"{row}metric]").get_attribute("data-value")
                assert float(value) == pytest.approx(line["metric_value"], abs=1e-6)
                assert tab.text(f"{row}cluster]") == str(line["cluster_index"])
                assert tab.find(f'.node[data-peer="{peer_id}"]').get_attribute("data-cluster") == str(
                    line["cluster_index"]
                )
            mean = sum(line["metric_value"] for line in lines) / len(lines)
            assert tab.number("metric_mean") == pytest.approx(mean, abs=1e-9)
            assert tab.text("[data-field=mode]") == f"replay, round {index + 1}"


def test_a_replay_plays_to_the_end_and_goes_back_to_the_newest(tab, page, recorded):
    recorded.complete(12)
    with page(recorded.directory) as link:
        tab.open(link())
        tab.script("const s = document.getElementById('speed'); s.value = '20'; s.dispatchEvent(new Event('change'))")
        tab.find("#play").click()
        tab.wait(
            lambda: tab.data("position") == "11" and tab.data("frames") == "11", "the replay shows each round once"
        )
        assert tab.text("[data-field=mode]").startswith("replay")
        tab.find("#live").click()
        tab.wait(lambda: tab.text("[data-field=mode]") == "live", "the page is live again")


def test_the_stream_grows_and_resumes_after_a_restart_of_the_server(tab, page, recorded):
    recorded.complete(2)
    with page(recorded.directory) as link:
        port = urlsplit(link()).port
        tab.open(link())
        assert tab.number("rounds") == 2
        recorded.complete(1)
        tab.wait(lambda: tab.number("rounds") == 3, "a new round appears")
        assert tab.data("films") == "2"  # one message more, not the film again
    tab.wait(lambda: tab.text("[data-field=mode]").startswith("stale"), "the page says that the server is gone")
    recorded.complete(4)
    with page(recorded.directory, port):
        tab.wait(lambda: tab.number("rounds") == 7, "the page has all rounds without a new link")
        assert tab.text("[data-field=mode]") == "live"
        assert tab.script("return document.querySelectorAll('#table tbody tr').length") == 6


def test_a_hidden_tab_has_no_stream_and_misses_nothing(tab, page, recorded):
    recorded.complete(2)
    hide = (
        "Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    with page(recorded.directory) as link:
        tab.open(link())
        tab.script(hide, True)
        films = tab.data("films")
        recorded.complete(3)
        count = "return performance.getEntriesByType('resource').filter(e => e.name.includes('stream')).length"
        closed = tab.script(count)
        tab.script(hide, False)
        tab.wait(lambda: tab.number("rounds") == 5, "the visible tab has all rounds")
        assert (films, tab.data("films")) == ("1", "2")
        assert closed == 1 or tab.script(count) >= closed


@pytest.mark.parametrize(
    ("method", "target", "headers", "status"),
    [
        ("GET", "/", {"Host": "evil.example"}, 421),
        ("GET", "/", {}, 403),
        ("GET", "/stream", {}, 403),
        ("GET", "/main.js", {}, 403),
        ("GET", "/?token=guess", {}, 403),
        ("POST", "/", {}, 405),
        ("GET", "/../access.py", {}, 403),
    ],
)
def test_what_is_not_allowed_is_refused(page, recorded, method, target, headers, status):
    with page(recorded.directory) as link:
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(link()).port, timeout=20)
        connection.request(method, target, headers=headers)
        answer = connection.getresponse()
        assert answer.status == status
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert b"metric_value" not in answer.read()
        connection.close()


def test_a_link_opens_the_page_once_and_leaves_no_token_in_the_address(tab, page, recorded):
    recorded.complete(1)
    with page(recorded.directory) as link:
        first = link()
        tab.open(first)
        assert "token" not in tab.driver.current_url
        assert tab.driver.get_cookies()[0]["httpOnly"] and tab.driver.get_cookies()[0]["sameSite"] == "Strict"
        assert tab.script("return document.cookie") == ""
        tab.wait(lambda: link() != first, "the server prints the next link")
        tab.driver.delete_all_cookies()
        tab.driver.get(first)
        assert "needs the link" in tab.text("body")
        tab.collect()
        tab.console = [text for text in tab.console if "403" not in text]  # the refusal that this test asks for


def test_text_of_neighbors_is_never_markup(tab, page, recorded):
    recorded.complete(1)
    recorded.write(1, "refused", neighbor=0, code="malformed", reason=HOSTILE)
    recorded.write(2, "neighbor", neighbor=1, state="dead", reason=HOSTILE)
    with page(recorded.directory) as link:
        tab.open(link())
        tab.wait(lambda: any("<img src=x" in text for text in tab.texts(".events li")), "the reason is text")
        tab.click('#table tr[data-peer="1"] button')
        tab.wait(
            lambda: any("<img src=x" in text for text in tab.texts("#panel li")), "the page of the peer has it as text"
        )
        assert tab.script("return document.images.length") == 0
        assert "broken in" not in tab.driver.title


def test_everything_is_reachable_by_keyboard(tab, page, recorded):
    recorded.complete(12)
    with page(recorded.directory) as link:
        tab.open(link())
        body = tab.find("body")
        body.send_keys(Keys.ARROW_LEFT)
        tab.wait(lambda: tab.data("position") == "10", "left is the round before")
        body.send_keys(Keys.HOME)
        tab.wait(lambda: tab.data("position") == "0", "home is the first round")
        body.send_keys("l")
        tab.wait(lambda: tab.text("[data-field=mode]") == "live", "L is the newest state")
        seen = set()
        for _ in range(60):
            tab.driver.switch_to.active_element.send_keys(Keys.TAB)
            seen.add(tab.script("const e = document.activeElement; return e.id || e.textContent.trim() || e.className"))
        assert {"theme", "play", "slider", "speed", "live", "rounds", "each peer", "table"} <= seen
        tab.script("document.querySelector('#table tr[data-peer=\"3\"] button').focus()")
        tab.driver.switch_to.active_element.send_keys(Keys.ENTER)
        tab.wait(
            lambda: tab.script("return document.activeElement.id") == "panel-title", "focus moves to the peer's page"
        )
        assert tab.text("#panel-title") == "Peer 3"
        tab.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        tab.wait(lambda: tab.script("return document.activeElement.textContent") == "3", "focus is back in the table")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_accessibility_rules_find_nothing_serious(tab, page, recorded, theme):
    recorded.complete(11)
    for peer_id in recorded.graph.ids:  # collaboration and mixtures are shown too
        state = {"collaborators": [(peer_id + 1) % 6], "mixture": [0.25, 0.75]}
        recorded.write(peer_id, "round", **recorded.line(peer_id, 11), state=state)
    recorded.write(2, "neighbor", neighbor=1, state="dead", reason="silent")
    recorded.done += 1
    ended_with_tests(recorded)
    with page(recorded.directory) as link:
        tab.open(link())
        assert tab.find("#matrix").is_displayed()
        if tab.script("return document.documentElement.dataset.theme") != theme:
            tab.find("#theme").click()
        tab.click('#table tr[data-peer="1"] button')
        tab.wait(lambda: tab.find("#panel").is_displayed(), "the page of the peer is open")
        tab.script((VENDOR / "axe.min.js").read_text() + ";window.axe = axe")
        found = tab.driver.execute_async_script(
            "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(r => done(r.violations))"
        )
        serious = [
            (rule["id"], [node["target"] for node in rule["nodes"]][:5], rule["nodes"][0]["failureSummary"])
            for rule in found
            if rule["impact"] in ("serious", "critical")
        ]
        assert serious == []


def test_a_saved_run_is_one_file_that_asks_for_nothing(tab, recorded, tmp_path):
    recorded.complete(12)
    recorded.write(1, "refused", neighbor=0, code="malformed", reason=HOSTILE)
    recorded.end()
    path = tmp_path / "run.html"
    command = [
        sys.executable,
        "-m",
        "peer",
        "report",
        recorded.directory,
        "--out",
        path,
    ]
    subprocess.run(command, check=True, capture_output=True)
    tab.open(path.as_uri())
    said = report(recorded.directory)
    assert tab.number("metric_mean") == pytest.approx(said["metric_mean"], abs=0)
    assert any("<img src=x" in text for text in tab.texts(".events li"))
    tab.seek(4)
    assert tab.text('#table tr[data-peer="1"] [data-field=cluster]') == "1"
    tab.collect()
    assert [address for address in tab.requests if not address.startswith(("file:", "about:", "data:"))] == []


def test_two_runs_are_drawn_over_each_other(tab, recorded, tmp_path):
    recorded.complete(12)
    other = Recorded(tmp_path / "other run", rounds=12)
    other.complete(8)
    path = tmp_path / "both.html"
    command = [sys.executable, "-m", "peer", "report", recorded.directory, other.directory, "--out", path]
    subprocess.run(command, check=True, capture_output=True)
    other.close()
    tab.open(path.as_uri())
    assert "Dashed: other run." in tab.text("#curves-note")


def test_the_page_of_many_peers_is_a_canvas(tab, page, tmp_path):
    run = Recorded(tmp_path / "many", peers=320, rounds=3)
    nodes = [replace(node, address="", dials_only=True) if node.id == 7 else node for node in run.graph.nodes]
    save_graph(replace(run.graph, nodes=tuple(nodes)), run.directory / "graph.json")
    run.complete(2)
    run.close()
    with page(run.directory) as link:
        tab.open(link())
        assert tab.script("return document.querySelector('#graph > *').tagName") == "CANVAS"
        assert tab.find("#graph canvas").get_attribute("data-signs") == "2"  # the edges of a peer that only dials
        assert "tunnel" in tab.text("#graph-legend")
        assert "320 peers" in tab.find("#graph canvas").get_attribute("aria-label")
        painted = (
            "const c = document.querySelector('#graph canvas');"
            "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            "let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n"
        )
        assert tab.script(painted) > 1000


def test_a_further_metric_is_chosen_for_the_curve_the_table_and_the_replay(tab, page, tmp_path):
    names = [HOSTILE[:64], "mae"]
    more = [{"name": name, "higher_is_better": name != "mae", "share": name != "mae"} for name in names]
    run = Recorded(tmp_path / "more", more_metrics=more)
    for index in range(3):
        for peer_id in run.graph.ids:
            values = {names[0]: 0.5, "mae": 40.0 + peer_id - index}
            run.write(peer_id, "round", **run.line(peer_id, index), metrics=values)
    with page(run.directory) as link:
        tab.open(link())
        assert tab.texts("#metric option") == ["accuracy", *names]
        tab.find("#metric").send_keys("mae")
        cell = '#table tr[data-peer="3"] [data-field=metric]'
        tab.wait(lambda: tab.text(cell) == "41", "the table shows the chosen metric")
        assert tab.text("#curves-title") == "Mae (lower is better)"
        assert "mean 40.5, worst 43, best 38" in tab.text("#curves-note")
        assert tab.number("metric_mean") == pytest.approx(sum(run.line(p, 2)["metric_value"] for p in range(6)) / 6)
        tab.seek(0)
        assert tab.text(cell) == "43"
        assert "mean 42.5, worst 45, best 40" in tab.text("#curves-note")
        tab.click('#table tr[data-peer="3"] button')
        tab.wait(lambda: tab.texts("#panel [data-field=mae]") == ["43"], "the peer's page has each metric")
        assert tab.script("return document.images.length") == 0 and "broken in" not in tab.driver.title
    run.close()


def test_vendored_accessibility_rules_are_those_of_their_release():
    lines = [line.split() for line in (VENDOR / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in lines} == {path.name for path in VENDOR.iterdir()} - {"SHA256SUMS"}
    for digest, name in lines:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


def test_the_collaboration_graph_is_shown_where_peers_choose(tab, page, recorded):
    recorded.complete(3)
    for peer_id in recorded.graph.ids:
        line = recorded.line(peer_id, 3) | {"state": {"candidates": [1, 5], "collaborators": [(peer_id + 1) % 6]}}
        recorded.write(peer_id, "round", **line)
    recorded.write(0, "round", **recorded.line(0, 4) | {"state": {"candidates": [1, 5], "collaborators": []}})
    with page(recorded.directory) as link:
        tab.open(link())
        assert tab.texts("#collaboration li")[:2] == ["peer 0: none", "peer 1: 2"]
        assert tab.text("#collaboration-note").startswith("5 choices, 0.8 a peer; 0 of 5 within a true cluster.")
        tab.seek(3)
        assert tab.texts("#collaboration li")[0] == "peer 0: 1"
        tab.click('#table tr[data-peer="0"] button')
        tab.wait(lambda: tab.text("#panel [data-field=averages_models_of]") == "1", "the peer's page names its choice")
        tab.seek(1)
        assert not tab.find("#collaboration").is_displayed()


def ended_with_tests(run):
    """Let all peers of a run end, with tests of neighbors' models: those of peer 5 are missing."""
    for peer_id in run.graph.ids:
        tests = [
            {"model_of": other, "missing": "dead"}
            if other == 5 != peer_id
            else {
                "model_of": other,
                "slot": 0,
                "round_index": 2,
                "metric_value": 0.9 - 0.1 * abs(other - peer_id),
                "loss": 1.0,
            }
            for other in sorted({peer_id, *run.graph.neighbors(peer_id)})
        ]
        last = run.line(peer_id, run.done - 1)
        run.write(peer_id, "end", rounds_completed=run.done, metric_value=last["metric_value"], model_tests=tests)
    run.close()


def test_the_matrix_of_tests_is_shown_after_the_end(tab, page, recorded):
    recorded.complete(3)
    with page(recorded.directory) as link:
        tab.open(link())
        assert not tab.find("#matrix").is_displayed()
        ended_with_tests(recorded)
        tab.wait(lambda: tab.find("#matrix").is_displayed(), "the peers have ended")
        assert tab.texts("#matrix thead th") == [f"data {i}" for i in (0, 2, 4, 1, 3, 5)], "by true cluster"
        assert tab.texts("#matrix tbody tr:first-child > *") == ["model 0", "0.900", "", "", "0.800", "", "0.400"]
        assert tab.texts("#matrix .missing") == ["dead", "dead"]
        assert tab.text("#matrix-note").startswith("accuracy, mean 0.900 of own models, 0.760 of neighbors'.")
        tab.click('#table tr[data-peer="0"] button')
        field = "#panel [data-field=tested_models_of]"
        tab.wait(lambda: "5:\u00a0dead" in tab.text(field), "the page of the peer has its tests")
        tab.seek(1)
        tab.wait(lambda: not tab.find("#matrix").is_displayed() and not tab.text(field), "no tests before the end")


def test_a_matrix_of_many_peers_is_a_picture(tab, page, tmp_path):
    run = Recorded(tmp_path / "many", peers=24, rounds=3)
    run.complete(3)
    ended_with_tests(run)
    with page(run.directory) as link:
        tab.open(link())
        assert tab.find("#matrix canvas").is_displayed() and not tab.find("#matrix table").is_displayed()
        script = """
        const canvas = document.querySelector('#matrix canvas'), size = canvas.width;
        const pixels = canvas.getContext('2d').getImageData(0, 0, size, size).data;
        const at = (row, column) => pixels.slice(4 * (row * size + column), 4 * (row * size + column) + 3).join();
        return [size, at(0, 0), at(1, 1), at(0, 1), at(14, 14), at(14, 2)];
        """
        size, first, second, blank, fifth, dead = tab.script(script)  # 12 even peers, then the odd ones: 5 is in row 14
        assert size == 24 and first == second == fifth != blank and dead not in (first, blank)


def test_rounds_alone_are_shown_where_status_and_report_name_them(tab, page, recorded):
    recorded.complete(4)
    alone = {"rounds_alone": 1, "neighbors_alive": 0, "folded": [], "models_folded": 0}
    for neighbor in recorded.graph.neighbors(2):
        recorded.write(2, "neighbor", neighbor=neighbor, state="left")
    for index in (4, 5):
        recorded.write(2, "round", **{**recorded.line(2, index), **alone})
    waits = '#table tr[data-peer="2"] [data-field=waits]'
    with page(recorded.directory) as link:
        tab.open(link())
        assert tab.text("#warnings") == "peer 2: 2 of 6 rounds without any neighbor"
        assert tab.text(waits).endswith("no neighbor is live; 2 of 6 rounds alone so far")
        assert "alone" not in tab.text('#table tr[data-peer="1"] [data-field=waits]')
        tab.script("document.querySelector('#table button[aria-label=\"Open peer 2\"]').click()")
        tab.wait(
            lambda: tab.texts("#panel [data-field=rounds_alone]") == ["2 of 6 rounds"], "the peer's page counts them"
        )
        tab.seek(4)
        tab.wait(lambda: tab.texts("#panel [data-field=rounds_alone]") == ["1 of 5 rounds"], "a replay counts up to it")
        assert tab.text(waits).endswith("without any neighbor")
        tab.seek(3)
        tab.wait(lambda: tab.texts("#panel [data-field=rounds_alone]") == ["none"], "none before")
        recorded.write(2, "end", rounds_completed=6, metric_value=0.5, cluster_index=0)
        tab.find("body").send_keys("l")
        tab.wait(
            lambda: tab.text(waits) == "2 of 6 rounds without any neighbor", "a peer that has ended keeps its note"
        )
