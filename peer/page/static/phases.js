// Seconds by phase of each peer, up to the cursor: stragglers have the longest training, the others wait.

import { element, mark, place, write } from "./dom.js";
import { durationText } from "./format.js";
import { PHASES } from "./film.js";

export class Phases {
  constructor(film) {
    place("phases-legend").replaceChildren(...PHASES.map((phase) => element("span", {}, element("i", { class: `swatch phase-${phase}`, "aria-hidden": "true" }), phase)));
    this.rows = film.run.peers.map((peer) => {
      const parts = PHASES.map((phase) => element("i", { class: `phase-${phase}` }));
      const text = element("td", { class: "number" });
      const cells = PHASES.map(() => element("td", { class: "unseen" }));
      const bar = element("td", { class: "phase-bar", "aria-hidden": "true" }, element("div", {}, ...parts));
      return { parts, text, cells, row: element("tr", { "data-peer": peer.id }, element("th", { scope: "row", class: "number" }, String(peer.id)), bar, text, ...cells) };
    });
    const heads = ["peer", "by phase", "all", ...PHASES].map((name, at) => element("th", { scope: "col", class: at === 1 ? "" : at > 2 ? "unseen" : "number" }, name));
    place("phases").replaceChildren(element("table", { class: "phases" }, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...this.rows.map(({ row }) => row))));
  }

  draw(film, cursor) {
    if (cursor.playing && film.size > 100) return; // sums over all rounds of many peers: when the replay stops
    const spent = this.rows.map((_, peer) => PHASES.map((phase) => film.sum(phase, peer, cursor.position)));
    const longest = Math.max(...spent.map(total), 1e-9);
    this.rows.forEach((row, peer) => {
      spent[peer].forEach((seconds, at) => {
        row.parts[at].style.width = `${(100 * seconds) / longest}%`;
        write(row.cells[at], durationText(seconds));
        mark(row.cells[at], "data-seconds", seconds.toFixed(6));
      });
      write(row.text, durationText(total(spent[peer])));
    });
  }
}

function total(values) {
  return values.reduce((sum, value) => sum + value, 0);
}
