// Seconds by phase of each peer, up to the cursor: stragglers have the longest training, the others wait.

import { element, mark, place, write } from "./dom.js";
import { durationText } from "./format.js";
import { PHASES } from "./film.js";
import { Rows } from "./rows.js";

export class Phases {
  constructor(film) {
    place("phases-legend").replaceChildren(...PHASES.map((phase) => element("span", {}, element("i", { class: `swatch phase-${phase}`, "aria-hidden": "true" }), phase)));
    const heads = ["peer", "by phase", "all", ...PHASES].map((name, at) => element("th", { scope: "col", class: at === 1 ? "" : at > 2 ? "unseen" : "number" }, name));
    const body = element("tbody", {});
    place("phases").replaceChildren(element("table", { class: "phases" }, element("thead", {}, element("tr", {}, ...heads)), body));
    this.film = film;
    this.rows = new Rows(place("phases"), body, film.size, makeRow, (slot, peer) => this.#fill(slot, peer));
  }

  draw(film, cursor) {
    if (cursor.playing && film.size > 100) return; // sums over all rounds of many peers: when the replay stops
    this.spent = film.run.peers.map((_, peer) => PHASES.map((phase) => film.sum(phase, peer, cursor.position)));
    this.longest = Math.max(...this.spent.map(total), 1e-9);
    this.rows.draw();
  }

  #fill(slot, peer) {
    const spent = this.spent[peer];
    mark(slot.row, "data-peer", this.film.run.peers[peer].id);
    write(slot.name, String(this.film.run.peers[peer].id));
    spent.forEach((seconds, at) => {
      slot.parts[at].style.width = `${(100 * seconds) / this.longest}%`;
      write(slot.cells[at], durationText(seconds));
      mark(slot.cells[at], "data-seconds", seconds.toFixed(6));
    });
    write(slot.text, durationText(total(spent)));
  }
}

function makeRow() {
  const parts = PHASES.map((phase) => element("i", { class: `phase-${phase}` }));
  const text = element("td", { class: "number" });
  const name = element("th", { scope: "row", class: "number" });
  const cells = PHASES.map(() => element("td", { class: "unseen" }));
  const bar = element("td", { class: "phase-bar", "aria-hidden": "true" }, element("div", {}, ...parts));
  return { parts, text, name, cells, row: element("tr", {}, name, bar, text, ...cells) };
}

function total(values) {
  return values.reduce((sum, value) => sum + value, 0);
}
