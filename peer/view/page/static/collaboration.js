// Who averages whose models, where the algorithm lets a peer choose: a matrix, and each peer's choice as text.

import { element, mark, place, write } from "./dom.js";
import { counted } from "./format.js";
import { pixel, presentColors } from "./palette.js";

export class Collaboration {
  constructor() {
    this.canvas = element("canvas", { role: "img", class: "matrix" });
    this.list = element("ul", { class: "scroll", tabindex: "0", "aria-label": "Choice of each peer" });
    place("collaboration").replaceChildren(element("div", { class: "matrix-frame" }, this.canvas), this.list);
  }

  draw(film, cursor, _peers, theme) {
    if (cursor.playing && film.size > 100) return; // when the replay stops
    const key = `${film.version}|${theme}|${cursor.position}`;
    if (key === this.shown) return;
    this.shown = key;
    const chosen = film.run.peers.map((_, peer) => film.chosen("collaborators", peer, cursor.position));
    place("collaboration").parentElement.hidden = !chosen.some(Boolean);
    if (!chosen.some(Boolean)) return;
    const links = chosen.flatMap((others, peer) => (others || []).map((other) => [peer, film.indexOf.get(other)])).filter(([, other]) => other !== undefined);
    this.#matrix(film, links);
    this.list.replaceChildren(...chosen.map((others, peer) => element("li", {}, `peer ${film.run.peers[peer].id}: ${others?.length ? others.join(", ") : "none"}`)));
    const pairs = links.filter(([peer, other]) => film.truth(peer) !== null && film.truth(other) !== null);
    const same = pairs.filter(([peer, other]) => film.truth(peer) === film.truth(other)).length;
    const within = pairs.length ? `; ${same} of ${pairs.length} within a true cluster` : "";
    const mean = (links.length / chosen.filter(Boolean).length).toFixed(1);
    write(place("collaboration-note"), `${counted(links.length, "choice")}, ${mean} a peer${within}. The row averages models of the column${within ? ": blue within a true cluster, orange across" : ""}.`);
  }

  #matrix(film, links) {
    const order = film.byTruth(), at = [];
    order.forEach((peer, row) => { at[peer] = row; });
    this.canvas.width = this.canvas.height = film.size;
    const pen = this.canvas.getContext("2d");
    const image = pen.createImageData(film.size, film.size);
    const pixels = new Uint32Array(image.data.buffer);
    const colors = presentColors();
    const [card, line, good, other] = [colors.card, colors.line, colors.accent, colors.warn].map(pixel);
    pixels.fill(card);
    film.run.edges.forEach(([a, b]) => { pixels[at[a] * film.size + at[b]] = pixels[at[b] * film.size + at[a]] = line; });
    for (const [peer, chosen] of links) pixels[at[peer] * film.size + at[chosen]] = film.truth(peer) === film.truth(chosen) ? good : other;
    pen.putImageData(image, 0, 0);
    mark(this.canvas, "aria-label", "Matrix of choices, rows and columns by true cluster. The list has each peer's choice.");
  }
}
