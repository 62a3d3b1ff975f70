// The graph on a canvas, for many peers.

import { element, mark } from "./dom.js";
import { isDown } from "./frame.js";
import { presentColors, shapeOf } from "./palette.js";

const CANVAS_HEIGHT = 460, CANVAS_SPACE = 16, REACH = 10; // pixels

export class CanvasGraph {
  constructor(parent, film, open) {
    this.film = film;
    this.canvas = element("canvas", { role: "img", class: "graph" });
    this.radius = Math.max(2.2, 75 / Math.sqrt(film.size));
    parent.append(this.canvas);
    this.canvas.addEventListener("click", (event) => {
      const nearest = this.#nearest(event.offsetX, event.offsetY);
      if (nearest >= 0) open(nearest);
    });
  }

  draw(peers, edges) {
    const colors = presentColors();
    if (this.version !== this.film.version) this.shapes = this.film.run.peers.map((_, peer) => new Path2D(shapeOf(this.film.truth(peer))));
    this.version = this.film.version;
    const scale = devicePixelRatio || 1;
    const width = this.canvas.parentElement.clientWidth;
    if (this.canvas.width !== Math.round(width * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(CANVAS_HEIGHT * scale);
    }
    this.spots = this.film.run.layout.map(([x, y]) => [CANVAS_SPACE + x * (width - 2 * CANVAS_SPACE), CANVAS_SPACE + y * (CANVAS_HEIGHT - 2 * CANVAS_SPACE)]);
    const pen = this.canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, CANVAS_HEIGHT);
    this.#edges(pen, edges, colors);
    this.#nodes(pen, peers, colors, scale);
  }

  #edges(pen, edges, colors) {
    const byState = Map.groupBy(edges.keys(), (at) => edges[at].state);
    const looks = { none: [colors.line, 0.5], one: [colors.edge, 0.5], both: [colors.edge, 0.8], suspect: [colors.warn, 1], dead: [colors.bad, 0.8] };
    pen.globalAlpha = this.film.run.edges.length > 1500 ? 0.35 : 0.7;
    for (const [state, [color, width]] of Object.entries(looks)) {
      pen.beginPath();
      (byState.get(state) || []).forEach((at) => {
        const [a, b] = this.film.run.edges[at];
        pen.moveTo(...this.spots[a]);
        pen.lineTo(...this.spots[b]);
      });
      pen.strokeStyle = color;
      pen.lineWidth = width;
      pen.setLineDash(state === "dead" ? [3, 3] : []);
      pen.stroke();
    }
    pen.setLineDash([]);
    pen.globalAlpha = 1;
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
