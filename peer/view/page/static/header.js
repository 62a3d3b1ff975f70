// Title, mode, warnings, and the numbers of the run at the cursor.

import { element, mark, place, write } from "./dom.js";
import { runAt } from "./frame.js";
import { bytesText, counted, decimal, durationText, known, whole } from "./format.js";

const MODES = {
  connecting: "connecting",
  waiting: "no run yet",
  live: "live",
  stale: "stale: no answer from the server",
  replay: "replay",
  ended: "ended",
  file: "saved run",
};

const TILES = [
  ["rounds", "Rounds"],
  ["metric_mean", "Mean accuracy"],
  ["metric_worst", "Worst peer"],
  ["metric_p10", "Worst tenth"],
  ["cluster_ari", "Clusters (ARI)"],
  ["payload_bytes_sent", "Sent"],
  ["alive", "Peers"],
  ["time", "Time"],
];

export class Header {
  constructor() {
    this.tiles = new Map();
    for (const [field, label] of TILES) {
      const value = element("span", { class: "value", "data-field": field });
      const name = element("span", { class: "name" }, label);
      const more = element("span", { class: "more" });
      place("numbers").append(element("div", { class: "tile" }, name, value, more));
      this.tiles.set(field, { name, value, more });
    }
    this.bar = element("i", {});
    this.tiles.get("rounds").more.after(element("span", { class: "bar", "aria-hidden": "true" }, this.bar));
  }

  /** Say that there is no run yet, and what starts one. */
  waits(directory) {
    write(document.querySelector("[data-field=title]"), "No run yet");
    write(document.querySelector("[data-field=subtitle]"), `${directory} has no graph.json and no history of a peer. This page shows the run as soon as one starts there, for example: peer testbed --out ${directory}`);
  }

  /** Show a mode before there is a run. */
  say(mode) {
    const pill = document.querySelector("[data-field=mode]");
    mark(pill, "data-mode", mode);
    write(pill, MODES[mode]);
  }

  draw(film, cursor, peers, mode) {
    this.#titles(film);
    const shown = !film.running && ["live", "stale"].includes(mode) ? "ended" : mode;
    const pill = document.querySelector("[data-field=mode]");
    mark(pill, "data-mode", cursor.live ? shown : "replay");
    const state = film.state.header.state;
    const how = ["ended", "file"].includes(shown) && !film.running && state !== "complete" ? `: ${state}` : "";
    write(pill, cursor.live ? `${MODES[shown]}${how}` : `replay, round ${cursor.position + 1}`);
    const numbers = cursor.live ? film.state.header : runAt(film, cursor.position, peers);
    this.#numbers(film, numbers, cursor);
  }

  #titles(film) {
    const { algorithm, task, peers, edges, clusters } = film.run;
    const title = `${algorithm || "unknown algorithm"} on ${task || "an unknown task"}`;
    write(document.querySelector("[data-field=title]"), title);
    if (document.title !== title) document.title = title;
    const models = clusters > 1 ? ` · ${clusters} models a peer` : "";
    write(
      document.querySelector("[data-field=subtitle]"),
      `${counted(peers.length, "peer")} · ${counted(edges.length, "edge")}${models}`
    );
    const list = place("warnings");
    const warnings = film.state.warnings;
    if (list.childElementCount !== warnings.length || warnings.some((text, at) => list.children[at].textContent !== text)) {
      list.replaceChildren(...warnings.map((text) => element("li", {}, text)));
    }
    list.hidden = warnings.length === 0;
  }

  #numbers(film, numbers, cursor) {
    const total = film.run.rounds_total;
    const low = numbers.rounds_min ?? 0, high = numbers.rounds_max ?? 0;
    const span = low === high ? whole(high) : `${whole(low)}–${whole(high)}`;
    this.#set("rounds", span, high);
    this.#more("rounds", total ? `of ${whole(total)}` : "");
    this.bar.style.width = total ? `${(100 * low) / total}%` : "0";
    for (const [field, key] of [["metric_mean", "mean"], ["metric_worst", "worst"], ["metric_p10", "tenth"]]) {
      this.#set(field, film.metricText(numbers[key], film.main), numbers[key]);
    }
    const last = film.frames[film.newest];
    const final = cursor.live && !film.running && last && known(numbers.mean) && Math.abs(numbers.mean - last.mean) > 1e-6;
    const over = numbers.measured < film.size ? ` over ${whole(numbers.measured)} of ${counted(film.size, "peer")}` : "";
    const deviation = known(numbers.std) ? `deviation ${film.metricText(numbers.std, film.main)}${over}` : "";
    this.#more("metric_mean", final ? `${deviation}; after the final phase` : deviation);
    write(this.tiles.get("metric_mean").name, `Mean ${film.main.name}`);
    this.#set("cluster_ari", decimal(numbers.ari), numbers.ari);
    const sent = numbers.totals && (numbers.totals.payload_bytes_sent ?? 0);
    this.#set("payload_bytes_sent", bytesText(sent), sent);
    this.#more("payload_bytes_sent", numbers.totals?.models_sent ? counted(numbers.totals.models_sent, "model") : "");
    this.#set("alive", `${whole(film.size - (numbers.down || 0))} of ${whole(film.size)}`, numbers.alive);
    this.#more("alive", Object.entries(numbers.states || {}).map(([status, count]) => `${whole(count)} ${status}`).join(", "));
    mark(this.tiles.get("alive").value.parentElement, "data-down", numbers.down || 0);
    this.#set("time", durationText(numbers.seconds), numbers.seconds);
    const left = cursor.live && film.running ? numbers.seconds_left : null;
    this.#more("time", known(left) && left >= 1 ? `about ${durationText(left)} left` : "");
  }

  #set(field, text, value) {
    const { value: node } = this.tiles.get(field);
    write(node, text);
    mark(node, "data-value", known(value) ? value : "");
  }

  #more(field, text) {
    write(this.tiles.get(field).more, text);
  }
}
