// One peer's page: its numbers, its curve, its neighbors, its events.

import { element, mark, place, vector } from "./dom.js";
import { bytesText, counted, decimal, durationText, known, whole } from "./format.js";
import { PHASES } from "./film.js";
import { aloneText, statusText } from "./frame.js";
import { resultText, testsOf } from "./matrix.js";
import { colorClass, shapeName } from "./palette.js";
import { sentenceOf } from "./timeline.js";
import { foldedTotals } from "./traffic.js";

const EVENTS_MOST = 40;

export class Panel {
  constructor(changed) {
    this.peer = null;
    this.changed = changed;
    this.back = null;
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.peer !== null) this.close();
    });
    const close = element("button", { type: "button", id: "panel-close", class: "round", "aria-label": "Close the page of the peer" }, "×");
    close.addEventListener("click", () => this.close());
    this.title = element("h2", { id: "panel-title", tabindex: "-1" });
    this.body = element("div", {});
    place("panel").replaceChildren(element("div", { class: "card-head" }, this.title, close), this.body);
  }

  open(peer, id) {
    this.back = this.peer === null ? document.activeElement : this.back;
    this.peer = peer;
    mark(place("panel"), "hidden", null); // what is hidden takes no focus
    this.title.textContent = `Peer ${id}`; // before the next frame draws it: a screen reader reads what gets the focus
    this.title.focus();
    this.changed();
  }

  close() {
    this.peer = null;
    this.changed();
    if (this.back && this.back.isConnected) this.back.focus();
  }

  draw(film, cursor, peers) {
    const aside = place("panel");
    mark(aside, "hidden", this.peer === null ? "" : null);
    if (this.peer === null) return;
    const { id, address } = film.run.peers[this.peer];
    const truth = film.truth(this.peer);
    mark(aside, "data-peer", id);
    const peer = peers[this.peer];
    const spent = PHASES.map((phase) => `${phase} ${durationText(film.sum(phase, this.peer, cursor.position))}`.replaceAll(" ", "\u00a0")).join(", ");
    const facts = [
      ["status", statusText(peer)],
      ["completed rounds", whole(peer.round) + (peer.behind ? `, ${peer.behind} behind` : "")],
      ...measures(film, this.peer, cursor),
      ["cluster", known(peer.cluster) ? String(peer.cluster) : "–"],
      ["true cluster", known(truth) ? `${truth} (${shapeName(truth)})` : "not known"],
      ["neighbors alive", known(peer.alive) ? `${peer.alive} of ${peer.neighbors}` : "–"],
      ["rounds alone", aloneText(peer) || "none"],
      ["sent", bytesText(peer.totals.payload_bytes_sent ?? 0)],
      ["counted", countsText(peer.totals)],
      ["waits", peer.waits || "for none"],
      ["seconds", spent],
    ];
    const { best_round: best, metric_best: value, epsilon } = film.state.peers[this.peer];
    if (cursor.live && known(epsilon)) facts.push(["epsilon", decimal(epsilon, 2)]);
    if (cursor.live && known(best)) facts.push(["best round", `${best}, ${film.metricText(value, film.main)} on its validation samples`]);
    if (address) facts.push(["address", address]);
    const mixture = film.chosen("mixture", this.peer, cursor.position);
    if (mixture) facts.push(["mixture", mixture.map((weight, cluster) => `${cluster}: ${decimal(weight, 2)}`).join(", ")]);
    const chosen = film.chosen("collaborators", this.peer, cursor.position);
    if (chosen) facts.push(["averages models of", chosen.length ? chosen.join(", ") : "none"]);
    const tests = cursor.position < film.newest ? [] : testsOf(film, this.peer);
    if (tests.length) facts.push(["tested models of", tests.map((test) => `${test[0]}: ${resultText(film, test)}`.replaceAll(" ", "\u00a0")).join(", ")]);
    const list = element("dl", {}, ...facts.flatMap(([name, text]) => [element("dt", {}, name), element("dd", { "data-field": name.replaceAll(" ", "_") }, text)]));
    this.body.replaceChildren(list, curve(film, this.peer, cursor.position), neighbors(film, this.peer, cursor), history(film, this.peer, cursor));
  }
}

/** Return all counters of a peer that are not 0; in a replay those that its rounds say. */
function countsText(totals) {
  const counted = Object.entries(totals).filter(([, count]) => count > 0);
  const texts = counted.map(([name, count]) => `${name.replaceAll("_", " ")} ${name.includes("bytes") ? bytesText(count) : whole(count)}`);
  return texts.join(", ") || "nothing";
}

/** Return name and value of each metric of the task at the cursor. */
function measures(film, peer, cursor) {
  const row = film.state.peers[peer];
  const newest = [row.metric, ...row.metrics];
  return [film.main, ...film.more].map((metric, at) => {
    const value = cursor.live ? newest[at] : film.latest(at ? `more${at - 1}` : "metric_value", peer, cursor.position);
    return [metric.name, film.metricText(value, metric)];
  });
}

function curve(film, peer, until) {
  const points = [], marks = [];
  const columns = Math.max(film.newest, 1);
  const values = Array.from({ length: until + 1 }, (_, round) => film.value(film.column, peer, round));
  const seen = values.filter((value) => !Number.isNaN(value));
  const low = Math.min(...seen), high = Math.max(...seen);
  values.forEach((value, round) => {
    if (!Number.isNaN(value)) points.push(`${(300 * round) / columns},${72 - (64 * (value - low)) / (high - low || 1)}`);
    const cluster = film.value("cluster", peer, round);
    marks.push(vector("rect", { x: (300 * round) / (columns + 1), y: 80, width: 300 / (columns + 1) + 0.3, height: 8, class: colorClass(Number.isNaN(cluster) ? null : cluster) }));
  });
  const text = seen.length ? `${film.metric.name} from ${film.metricText(low)} to ${film.metricText(high)} over ${counted(seen.length, "round")}` : "no evaluation yet";
  return element("figure", {}, vector("svg", { viewBox: "0 0 300 90", role: "img", "aria-label": text, class: "peer-curve" }, vector("polyline", { points: points.join(" ") }), ...marks), element("figcaption", { class: "note" }, text));
}

function neighbors(film, peer, cursor) {
  const seconds = cursor.live ? Infinity : film.secondsAt(cursor.position);
  const from = foldedTotals(film, peer, cursor.position);
  const rows = film.neighbors[peer].map((neighbor, at) => {
    const there = foldedTotals(film, neighbor, cursor.position)[film.neighbors[neighbor].indexOf(peer)];
    const cells = [film.run.peers[neighbor].id, film.linkAt(peer, neighbor, seconds), film.kind(peer, neighbor), whole(from[at]), whole(there)];
    return element("tr", {}, ...cells.map((text, column) => element(column ? "td" : "th", column ? { class: column > 2 ? "number" : "" } : { scope: "row" }, String(text))));
  });
  const heads = ["neighbor", "state", "reached", "models folded", "models taken"].map((text, at) => element("th", { scope: "col", class: at > 2 ? "number" : "" }, text));
  return element("table", {}, element("caption", {}, "Neighbors"), element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
}

function history(film, peer, cursor) {
  const seconds = cursor.live ? Infinity : film.secondsAt(cursor.position);
  const id = film.run.peers[peer].id;
  const events = film.state.events.filter((event) => (event.peer === id || event.by.includes(id)) && event.at <= seconds).slice(-EVENTS_MOST).reverse();
  return element("section", {}, element("h3", {}, "Events"), element("ol", { class: "events" }, ...events.map((event) => element("li", {}, element("time", {}, durationText(event.at)), element("b", {}, event.kind), element("span", {}, sentenceOf(event))))));
}
