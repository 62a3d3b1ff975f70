// Models folded per directed edge, up to the cursor: a matrix, and the edges that carried most and least.

import { element, mark, place, write } from "./dom.js";
import { counted } from "./format.js";
import { presentColors, rgb } from "./palette.js";

const MOST = 5;

export class Traffic {
  constructor() {
    this.canvas = element("canvas", { role: "img", class: "matrix" });
    this.lists = element("div", { class: "edge-lists" });
    place("traffic").replaceChildren(element("div", { class: "matrix-frame" }, this.canvas), this.lists);
  }

  draw(film, cursor, _peers, theme) {
    if (cursor.playing && film.size > 100) return; // counts over all rounds of many edges: when the replay stops
    const key = `${film.version}|${theme}|${cursor.position}`;
    if (key === this.shown) return;
    this.shown = key;
    const counts = this.#counts(film, cursor.position);
    const most = Math.max(1, ...counts.map(({ models }) => models));
    this.#matrix(film, counts, most);
    const sorted = [...counts].sort((a, b) => b.models - a.models);
    this.lists.replaceChildren(list(film, "Most models", sorted.slice(0, MOST)), list(film, "Fewest models", sorted.slice(-MOST).reverse()));
    const all = counts.reduce((sum, { models }) => sum + models, 0);
    write(place("traffic-note"), `${counted(all, "model")} folded until round ${cursor.position + 1}; row receives, column sends.`);
    mark(this.canvas, "aria-label", `Matrix of models folded per directed edge, at most ${most}. The lists name the extreme edges; the page of a peer has all of its own.`);
  }

  #counts(film, round) {
    const counts = [];
    film.neighbors.forEach((neighbors, peer) => {
      const totals = foldedTotals(film, peer, round);
      neighbors.forEach((neighbor, at) => counts.push({ peer, neighbor, models: totals[at] }));
    });
    return counts;
  }

  #matrix(film, counts, most) {
    const size = film.size;
    this.canvas.width = this.canvas.height = size;
    const pen = this.canvas.getContext("2d");
    const image = pen.createImageData(size, size);
    const colors = presentColors();
    const [from, to] = [rgb(colors.line), rgb(colors.accent)];
    for (const { peer, neighbor, models } of counts) {
      const share = models ? 0.15 + (0.85 * models) / most : 0;
      image.data.set([...from.map((value, at) => value + share * (to[at] - value)), 255], 4 * (peer * size + neighbor));
    }
    pen.putImageData(image, 0, 0);
  }
}

/** Return how many models a peer folded from each of its neighbors up to a round. */
export function foldedTotals(film, peer, round) {
  const totals = film.neighbors[peer].map(() => 0);
  for (let at = Math.min(round, film.last[peer]); at >= 0; at -= 1) {
    const text = film.texts.folded[peer][at] || "";
    for (let neighbor = 0; neighbor < text.length; neighbor += 1) totals[neighbor] += parseInt(text[neighbor], 36);
  }
  return totals;
}

function list(film, title, entries) {
  const id = (peer) => film.run.peers[peer].id;
  const items = entries.map(({ peer, neighbor, models }) => element("li", {}, `${id(neighbor)} to ${id(peer)}: ${counted(models, "model")}`));
  return element("div", {}, element("h3", {}, title), element("ul", {}, ...items));
}
