// The graph on a canvas, for many peers.

import { element, mark } from "./dom.js";
import { isDown } from "./frame.js";
import { presentColors, shapeOf } from "./palette.js";

const CANVAS_SPACE = 16, REACH = 10, SIGN = 3.5; // pixels

export class CanvasGraph {
  constructor(parent, film, open) {
    this.film = film;
    this.canvas = element("canvas", { role: "img", class: "graph" });
    this.layer = element("canvas", {});
    this.radius = Math.max(2.2, 75 / Math.sqrt(film.size));
    parent.append(this.canvas);
    this.canvas.addEventListener("click", (event) => {
      const nearest = this.#nearest(event.offsetX, event.offsetY);
      if (nearest >= 0) open(nearest);
    });
  }

  draw(peers, edges) {
    const colors = presentColors();
    if (this.version !== this.film.version) {
      this.shapes = this.film.run.peers.map((_, peer) => new Path2D(shapeOf(this.film.truth(peer))));
      this.signs = this.film.run.edges.map(([a, b]) => this.film.kind(a, b)).map((kind, at) => [at, kind]).filter(([, kind]) => kind !== "direct");
      mark(this.canvas, "data-signs", this.signs.length);
    }
    this.version = this.film.version;
    const scale = devicePixelRatio || 1;
    this.#fit(scale);
    this.#edges(edges, colors, scale);
    const pen = this.canvas.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.drawImage(this.layer, 0, 0);
    this.#nodes(pen, peers, colors, scale);
  }

  #fit(scale) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const pixels = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width === pixels[0] && this.canvas.height === pixels[1]) return;
    for (const canvas of [this.canvas, this.layer]) [canvas.width, canvas.height] = pixels;
    this.drawn = "";
    this.spots = this.film.run.layout.map(([x, y]) => [CANVAS_SPACE + x * (width - 2 * CANVAS_SPACE), CANVAS_SPACE + y * (height - 2 * CANVAS_SPACE)]);
  }

  /** Draw the edges on their layer, if one of them has changed. */
  #edges(edges, colors, scale) {
    const key = `${colors.line}${colors.edge}|${edges.map(({ state }) => state).join()}|${this.signs.join()}`;
    if (key === this.drawn) return;
    this.drawn = key;
    const pen = this.layer.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, this.layer.width, this.layer.height);
    pen.globalAlpha = edges.length > 1500 ? 0.35 : 0.7;
    for (const [state, color, thickness] of [["none", colors.line, 0.5], ["one", colors.edge, 0.5], ["both", colors.edge, 0.8], ["suspect", colors.warn, 1], ["dead", colors.bad, 0.8]]) {
      pen.strokeStyle = color;
      pen.lineWidth = thickness;
      pen.setLineDash(state === "dead" ? [3, 3] : []);
      edges.forEach((edge, at) => {
        if (edge.state !== state) return;
        const [a, b] = this.film.run.edges[at];
        pen.beginPath(); // a path of its own: many lines in one path are slow to fill
        pen.moveTo(...this.spots[a]);
        pen.lineTo(...this.spots[b]);
        pen.stroke();
      });
    }
    this.#signs(pen, colors);
  }

  /** Put the signs of the picture of fewer peers on edges that are not direct: a diamond for a relay, else a circle. */
  #signs(pen, colors) {
    pen.globalAlpha = 1;
    pen.setLineDash([]);
    pen.lineWidth = 1;
    pen.fillStyle = colors.card;
    pen.strokeStyle = colors.soft;
    for (const [at, kind] of this.signs) {
      const [a, b] = this.film.run.edges[at].map((end) => this.spots[end]);
      const [x, y] = [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
      pen.beginPath();
      if (kind === "relay") [[0, -SIGN], [SIGN, 0], [0, SIGN], [-SIGN, 0]].forEach(([right, down]) => pen.lineTo(x + right, y + down));
      else pen.arc(x, y, 0.8 * SIGN, 0, 2 * Math.PI);
      pen.closePath();
      pen.fill();
      pen.stroke();
    }
  }

  #nodes(pen, peers, colors, scale) {
    peers.forEach((peer, at) => {
      const [x, y] = this.spots[at];
      pen.setTransform(scale * this.radius, 0, 0, scale * this.radius, scale * x, scale * y);
      pen.fillStyle = isDown(peer) ? colors.card : peer.cluster >= 0 && peer.cluster !== null ? colors.clusters[peer.cluster % 8] : colors.none;
      pen.fill(this.shapes[at]);
      if (peer.behind || isDown(peer)) {
        pen.lineWidth = 0.45;
        pen.strokeStyle = isDown(peer) ? colors.bad : colors.warn;
        pen.stroke(this.shapes[at]);
      }
    });
    pen.setTransform(scale, 0, 0, scale, 0, 0);
  }

  describe(text) {
    mark(this.canvas, "aria-label", text);
  }

  #nearest(x, y) {
    let best = -1, distance = REACH * REACH;
    (this.spots || []).forEach(([a, b], at) => {
      const found = (a - x) ** 2 + (b - y) ** 2;
      if (found < distance) [best, distance] = [at, found];
    });
    return best;
  }
}
