// What colors, shapes and rings of the graph mean; only what the picture has now.

import { element, place, vector } from "./dom.js";
import { colorClass, shapeOf } from "./palette.js";

/** Return a function that draws the legend for some peers. */
export function graphLegend(film) {
  let shown = "";
  return (peers) => {
    const colors = [...new Set(peers.map((peer) => peer.cluster))].filter((cluster) => cluster !== null && cluster !== undefined).sort();
    const shapes = [...new Set(film.run.peers.map((_, peer) => film.truth(peer)))].filter((cluster) => cluster !== null).sort();
    const kinds = [...new Set(film.run.edges.map(([a, b]) => film.kind(a, b)))].filter((kind) => kind !== "direct").sort();
    const key = `${kinds}|${colors}|${shapes}|${peers.some((peer) => peer.behind)}`;
    if (key === shown) return;
    shown = key;
    const items = colors.map((cluster) => entry(colorClass(cluster), 0, `cluster ${cluster}`));
    if (shapes.length > 1) items.push(...shapes.map((cluster) => entry("hollow", cluster, `true ${cluster}`)));
    if (peers.some((peer) => peer.behind)) items.push(entry("ring", 0, "rounds behind"));
    items.push(...kinds.map((kind) => entry("hollow", kind === "relay" ? 3 : 0, kind)));
    place("graph-legend").replaceChildren(...items);
  };
}

function entry(look, shape, text) {
  const icon = vector("svg", { viewBox: "-1.6 -1.6 3.2 3.2", "aria-hidden": "true" }, vector("path", { d: shapeOf(shape), class: look }));
  return element("span", {}, icon, text);
}
