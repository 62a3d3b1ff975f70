// The model of each peer, as of the last round, on the test samples of its neighbors: numbers in colors, or colors alone.

import { element, mark, place, write } from "./dom.js";
import { known } from "./format.js";
import { pixel, presentColors, rgb } from "./palette.js";

const NUMBERS_MOST = 20; // peers in a table; more are a picture, and the page of a peer has its numbers
const WASH = 0.45; // share of the accent color behind the best number; with more the text would be hard to read

/** Return what a peer found: [peer, value, slot, round, reason] of each model, [] before its end. */
export function testsOf(film, peer) {
  return film.state.peers[peer].tests;
}

/** Return a result as text: the value, or why there is none. */
export function resultText(film, [, value, , , reason]) {
  return reason ? reason.replaceAll("_", " ") : film.metricText(value, film.main);
}

export class Matrix {
  constructor() {
    this.table = element("table", { class: "tests" });
    this.canvas = element("canvas", { role: "img", class: "matrix" });
    place("matrix").replaceChildren(this.table, this.canvas);
  }

  draw(film, cursor, _peers, theme) {
    const columns = film.byTruth().filter((peer) => testsOf(film, peer).length);
    place("matrix").parentElement.hidden = !columns.length || cursor.position < film.newest;
    const key = `${film.version}|${theme}`;
    if (!columns.length || key === this.shown) return;
    this.shown = key;
    const values = columns.flatMap((peer) => testsOf(film, peer)).map(([, value]) => value).filter(known);
    this.low = Math.min(...values);
    this.high = Math.max(...values);
    this.table.hidden = film.size > NUMBERS_MOST;
    this.canvas.hidden = !this.table.hidden;
    if (this.canvas.hidden) this.#table(film, columns);
    else this.#picture(film, columns);
    this.#describe(film, columns);
  }

  /** Return how good a value is among all, from 0 to 1. */
  #share(film, value) {
    const share = this.high > this.low ? (value - this.low) / (this.high - this.low) : 1;
    return film.main.higher_is_better ? share : 1 - share;
  }

  #table(film, columns) {
    const found = new Map(columns.flatMap((peer) => testsOf(film, peer).map((test) => [`${test[0]}|${peer}`, test])));
    const ids = new Set(columns.flatMap((peer) => testsOf(film, peer).map(([id]) => id)));
    const order = film.byTruth().map((peer) => film.run.peers[peer].id); // of one state directory only its peer
    const heads = columns.map((peer) => element("th", { scope: "col", class: "number" }, `data ${film.run.peers[peer].id}`));
    const rows = [...new Set([...order, ...ids])].filter((id) => ids.has(id)).map((id) => {
      const cells = columns.map((peer) => this.#cell(film, found.get(`${id}|${peer}`), film.run.peers[peer].id === id));
      return element("tr", {}, element("th", { scope: "row" }, `model ${id}`), ...cells);
    });
    this.table.replaceChildren(element("thead", {}, element("tr", {}, element("td", {}), ...heads)), element("tbody", {}, ...rows));
  }

  #cell(film, test, own) {
    if (!test) return element("td", {});
    const cell = element("td", { class: test[4] ? "number missing" : "number", "data-own": own || null }, resultText(film, test));
    if (known(test[1])) cell.style.setProperty("--share", `${100 * WASH * this.#share(film, test[1])}%`);
    return cell;
  }

  #picture(film, columns) {
    const order = film.byTruth(), at = [];
    order.forEach((peer, row) => { at[peer] = row; });
    this.canvas.width = this.canvas.height = film.size;
    const pen = this.canvas.getContext("2d");
    const image = pen.createImageData(film.size, film.size);
    const pixels = new Uint32Array(image.data.buffer);
    const colors = presentColors();
    const [card, accent] = [colors.card, colors.accent].map(rgb);
    const shade = (share) => `#${card.map((from, part) => Math.round(from + (accent[part] - from) * (0.12 + 0.88 * share)).toString(16).padStart(2, "0")).join("")}`;
    pixels.fill(pixel(colors.card));
    for (const peer of columns) {
      for (const [id, value] of testsOf(film, peer)) {
        const row = at[film.indexOf.get(id)];
        if (row !== undefined) pixels[row * film.size + at[peer]] = pixel(known(value) ? shade(this.#share(film, value)) : colors.bad);
      }
    }
    pen.putImageData(image, 0, 0);
    mark(this.canvas, "aria-label", "Matrix of tests, rows and columns by true cluster. The page of a peer has its numbers.");
  }

  #describe(film, columns) {
    const mean = (own) => {
      const values = columns.flatMap((peer) => testsOf(film, peer).filter(([id]) => (id === film.run.peers[peer].id) === own)).map(([, value]) => value).filter(known);
      return values.length ? film.metricText(values.reduce((sum, value) => sum + value, 0) / values.length, film.main) : "–";
    };
    const colors = this.canvas.hidden ? "" : " Pale to strong: worst to best; red: missing; blank: no edge.";
    write(place("matrix-note"), `${film.main.name}, mean ${mean(true)} of own models, ${mean(false)} of neighbors'. Model of the row on the test samples of the column; both by true cluster.${colors}`);
  }
}
