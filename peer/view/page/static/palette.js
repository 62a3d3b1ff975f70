// Colors and shapes of clusters. The colors are in base.css (Okabe and Ito, 2008); shapes say the same without color.

import { known } from "./format.js";

export const COLORS = 8;

// Unit shapes around (0, 0), of equal area.
const SHAPES = [
  "M1 0A1 1 0 1 1 -1 0A1 1 0 1 1 1 0Z",
  "M-.89 -.89H.89V.89H-.89Z",
  "M0 -1.25 1.2 .85H-1.2Z",
  "M0 -1.28 1.28 0 0 1.28 -1.28 0Z",
  "M0 1.25 1.2 -.85H-1.2Z",
  "M-.42 -1.2H.42V-.42H1.2V.42H.42V1.2H-.42V.42H-1.2V-.42H-.42Z",
  "M0 -1.3 .35 -.45 1.25 -.4 .55 .18 .8 1.08 0 .58 -.8 1.08 -.55 .18 -1.25 -.4 -.35 -.45Z",
  "M-.55 -.96H.55L1.1 0 .55 .96H-.55L-1.1 0Z",
];
const SHAPE_NAMES = ["circle", "square", "triangle", "diamond", "down triangle", "cross", "star", "hexagon"];

/** Return the path of a true cluster; a circle if it is not known. */
export function shapeOf(cluster) {
  return SHAPES[(cluster ?? 0) % SHAPES.length];
}

/** Return the name of that shape. */
export function shapeName(cluster) {
  return SHAPE_NAMES[(cluster ?? 0) % SHAPES.length];
}

/** Return the CSS class of a cluster's color: `color-0` to `color-7`, or `color-none`. */
export function colorClass(cluster) {
  return known(cluster) ? `color-${cluster % COLORS}` : "color-none";
}

/** Return the present colors as CSS texts: clusters by number, and named ones. */
export function presentColors() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    clusters: Array.from({ length: COLORS }, (_, index) => of(`color-${index}`)),
    none: of("color-none"),
    ...Object.fromEntries(
      ["ink", "soft", "faint", "line", "card", "accent", "warn", "bad", "good", "edge"].map((name) => [name, of(name)])
    ),
  };
}

/** Return a color `#rrggbb` as one pixel of a canvas' image data, seen as numbers of 32 bits. */
export function pixel(hex) {
  return new Uint32Array(new Uint8Array([...rgb(hex), 255]).buffer)[0];
}

/** Return [red, green, blue], 0 to 255, of a color `#rrggbb`. */
export function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}
