// The graph as SVG, for up to some hundred peers.

import { mark, vector, write } from "./dom.js";
import { isDown } from "./frame.js";
import { colorClass, shapeOf } from "./palette.js";

const WIDTH = 640, HEIGHT = 460, EDGE_SPACE = 44;

export class SvgGraph {
  constructor(parent, film, open) {
    this.film = film;
    const size = radiusOf(film.size);
    this.svg = vector("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "graph" });
    this.edges = film.run.edges.map(([a, b]) => {
      const [x1, y1, x2, y2] = [...spot(film, a), ...spot(film, b)];
      const line = vector("line", { x1, y1, x2, y2, class: "edge", "data-edge": `${id(film, a)}-${id(film, b)}` });
      const sign = vector("g", { class: "edge-kind", transform: `translate(${(x1 + x2) / 2} ${(y1 + y2) / 2})` });
      this.svg.append(line, sign);
      return { line, sign, a, b };
    });
    this.nodes = film.run.peers.map((peer, index) => {
      const [x, y] = spot(film, index);
      const ring = vector("circle", { r: size * 1.75, class: "ring" });
      const body = vector("path", { transform: `scale(${size})`, class: "body" });
      const name = vector("text", { class: "node-name", "aria-hidden": "true", "font-size": size * 0.85 }, size >= 9 ? String(peer.id) : "");
      const title = vector("title", {});
      const node = vector("g", { class: "node", transform: `translate(${x} ${y})`, "data-peer": peer.id }, title, ring, body, name);
      node.addEventListener("click", () => open(index));
      this.svg.append(node);
      return { node, ring, body, title };
    });
    parent.append(this.svg);
  }

  draw(peers, edges) {
    edges.forEach((edge, at) => {
      const { line, sign, a, b } = this.edges[at];
      mark(line, "data-state", edge.state);
      showKind(line, sign, this.film.kind(a, b));
    });
    peers.forEach((peer, at) => {
      const { node, ring, body, title } = this.nodes[at];
      mark(node, "data-status", peer.status);
      mark(node, "data-down", isDown(peer) ? "yes" : null);
      mark(node, "data-cluster", peer.cluster ?? "");
      mark(node, "data-behind", peer.behind);
      mark(body, "d", shapeOf(this.film.truth(at)));
      mark(body, "class", `body ${colorClass(peer.cluster)}`);
      const arc = 2 * Math.PI * ring.r.baseVal.value;
      mark(ring, "stroke-dasharray", `${arc * Math.min(1, peer.behind / 10)} ${arc}`);
      write(title, `peer ${this.film.run.peers[at].id}: ${peer.status}, round ${peer.round}, ${this.film.metricText(peer.metric)}`);
    });
  }

  describe(text) {
    mark(this.svg, "aria-label", text);
  }
}

/** Return the radius of a node in a picture with this number of peers. */
function radiusOf(count) {
  return Math.max(4.5, Math.min(19, 110 / Math.sqrt(count) / 1.6));
}

function spot(film, peer) {
  const [x, y] = film.run.layout[peer];
  return [EDGE_SPACE + x * (WIDTH - 2 * EDGE_SPACE), EDGE_SPACE + y * (HEIGHT - 2 * EDGE_SPACE)];
}

/** Put a sign on an edge that is not direct: a circle for a tunnel or a proxy, a diamond for a relay. */
function showKind(line, sign, kind) {
  if (line.dataset.kind === kind) return;
  mark(line, "data-kind", kind);
  if (kind === "direct") sign.replaceChildren();
  else sign.replaceChildren(vector("title", {}, kind), kind === "relay" ? vector("path", { d: "M0 -5 5 0 0 5 -5 0Z" }) : vector("circle", { r: 4 }));
}

function id(film, peer) {
  return film.run.peers[peer].id;
}
