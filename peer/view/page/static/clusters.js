// Peers x rounds: the cluster of each peer in each round, the agreement with the true clusters above, mixtures beside.

import { element, mark, place, vector, write } from "./dom.js";
import { decimal, known } from "./format.js";
import { colorClass, pixel, presentColors } from "./palette.js";

const ROW_MOST = 18, HEIGHT_MOST = 420, HEIGHT_LEAST = 90; // pixels

export class Clusters {
  constructor(film, seek, open) {
    this.canvas = element("canvas", { role: "img", class: "heat" });
    this.line = element("i", { class: "heat-cursor", "aria-hidden": "true" });
    this.curve = vector("svg", { class: "ari", viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.names = element("div", { class: "heat-names", "aria-hidden": "true" });
    this.bars = element("div", { class: "mixtures", role: "img" });
    const picture = element("div", { class: "heat-picture" }, this.canvas, this.line);
    place("clusters").replaceChildren(element("div", { class: "heat-frame" }, element("span", { class: "note ari-name" }, "ARI"), this.curve, this.names, picture, this.bars));
    this.shown = "";
    picture.addEventListener("click", (event) => {
      const box = picture.getBoundingClientRect();
      seek(Math.floor(((event.clientX - box.left) / box.width) * this.columns));
    });
    this.names.addEventListener("click", (event) => {
      if (event.target.dataset.at) open(Number(event.target.dataset.at));
    });
  }

  draw(film, cursor, _peers, theme) {
    this.columns = Math.max(film.newest + 1, 1);
    const key = `${film.version}|${theme}`;
    if (key !== this.shown) this.#picture(film);
    this.shown = key;
    const last = cursor.position;
    this.line.hidden = cursor.live || last < 0;
    this.line.style.left = `${(100 * (last + 0.5)) / this.columns}%`;
    this.#mixtures(film, last);
    this.#describe(film, last);
  }

  #picture(film) {
    this.order = film.byTruth();
    const rows = this.order.length;
    const height = Math.max(HEIGHT_LEAST, Math.min(HEIGHT_MOST, rows * ROW_MOST));
    this.canvas.parentElement.style.height = `${height}px`;
    this.canvas.parentElement.style.setProperty("--row", height / rows >= 9 ? `${height / rows}px` : "0px");
    this.canvas.width = this.columns;
    this.canvas.height = rows;
    const pen = this.canvas.getContext("2d");
    const image = pen.createImageData(this.columns, rows);
    const colors = presentColors();
    const inks = colors.clusters.map(pixel), none = pixel(colors.card);
    const pixels = new Uint32Array(image.data.buffer);
    this.order.forEach((peer, row) => {
      for (let round = 0; round < this.columns; round += 1) {
        const cluster = film.value("cluster", peer, round);
        pixels[row * this.columns + round] = Number.isNaN(cluster) ? none : inks[cluster % inks.length];
      }
    });
    pen.putImageData(image, 0, 0);
    this.#names(film, height / rows);
    const points = film.frames.map((frame, round) => (frame && known(frame.ari) ? `${(round + 0.5) / this.columns},${1 - Math.max(0, frame.ari)}` : "")).filter(Boolean);
    this.curve.replaceChildren(vector("polyline", { points: points.join(" "), class: "ari-line" }));
    const hidden = points.length === 0;
    mark(this.curve.parentElement, "data-ari", hidden ? "none" : "known");
  }

  #names(film, row) {
    const every = Math.ceil(11 / row);
    const labels = this.order.map((peer, at) => {
      const label = element("span", { "data-at": peer }, at % every ? "" : String(film.run.peers[peer].id));
      return label;
    });
    this.names.replaceChildren(...(every > 1 ? labels.filter((_, at) => at % every === 0) : labels));
  }

  #mixtures(film, round) {
    const mixtures = film.size <= 100 ? this.order.map((peer) => film.chosen("mixture", peer, round)) : [];
    const some = mixtures.some(Boolean);
    this.bars.hidden = !some;
    if (!some) return;
    const key = JSON.stringify(mixtures);
    if (key === this.mixed) return;
    this.mixed = key;
    this.bars.replaceChildren(...mixtures.map((weights) => {
      const total = (weights || []).reduce((sum, weight) => sum + weight, 0) || 1;
      const bar = element("div", {});
      (weights || []).forEach((weight, cluster) => {
        const part = element("i", { class: colorClass(cluster) });
        part.style.width = `${(100 * weight) / total}%`;
        bar.append(part);
      });
      return bar;
    }));
    mark(this.bars, "aria-label", "Mixture of clusters of each peer; the page of a peer has its numbers.");
  }

  #describe(film, round) {
    const frame = film.frames[round];
    const ari = frame && known(frame.ari) ? `ARI ${decimal(frame.ari)} after round ${round + 1}. ` : "";
    write(place("clusters-note"), `${ari}One row a peer, one column a round; rows by true cluster.${this.bars.hidden ? "" : " Bars: mixture of clusters."}`);
    mark(this.canvas, "aria-label", `Cluster of each peer in ${this.columns} rounds. ${ari}The table of peers has the present clusters.`);
  }
}
