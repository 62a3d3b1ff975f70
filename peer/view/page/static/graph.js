// The graph: color is the cluster, shape the true cluster, ring the rounds behind; edges by what was folded and who is alive.

import { place } from "./dom.js";
import { graphLegend } from "./graph_legend.js";
import { CanvasGraph } from "./graph_canvas.js";
import { SvgGraph } from "./graph_svg.js";
import { counted } from "./format.js";
import { isDown } from "./frame.js";

const SVG_MOST = 300; // peers; above it a canvas

export class Graph {
  constructor(film, open) {
    const drawing = film.size <= SVG_MOST ? SvgGraph : CanvasGraph;
    place("graph").replaceChildren();
    this.drawing = new drawing(place("graph"), film, open);
    this.legend = graphLegend(film);
  }

  draw(film, cursor, peers) {
    const edges = film.run.edges.map(([a, b]) => edgeAt(film, a, b, cursor, peers));
    this.drawing.draw(peers, edges);
    this.legend(peers);
    this.drawing.describe(description(film, peers));
  }
}

/** Return `dead`, `suspect`, `both`, `one`, or `none`, and the models that crossed the edge in the round. */
export function edgeAt(film, a, b, cursor, peers) {
  const round = cursor.position;
  const seconds = cursor.live ? Infinity : film.secondsAt(round);
  const said = [film.linkAt(a, b, seconds), film.linkAt(b, a, seconds)];
  const [there, back] = [film.foldedFrom(a, b, film.roundUntil(a, round)), film.foldedFrom(b, a, film.roundUntil(b, round))];
  const models = there + back;
  if (isDown(peers[a]) || isDown(peers[b]) || said.includes("dead")) return { state: "dead", models };
  if (said.includes("suspect")) return { state: "suspect", models };
  return { state: there && back ? "both" : models ? "one" : "none", models };
}

function description(film, peers) {
  const clusters = new Map();
  for (const peer of peers) {
    const key = peer.cluster ?? "no cluster yet";
    clusters.set(key, (clusters.get(key) || 0) + 1);
  }
  const parts = [...clusters].sort().map(([key, count]) => `${typeof key === "number" ? `cluster ${key}` : key}: ${counted(count, "peer")}`);
  const dead = peers.filter(isDown).length;
  const deaths = dead ? ` ${counted(dead, "peer")} dead.` : "";
  return `Graph of ${counted(peers.length, "peer")}. ${parts.join(", ")}.${deaths} The table of peers has the same data.`;
}
