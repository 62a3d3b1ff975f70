// The metric over rounds, seconds or megabytes: the mean, a band from the worst to the best peer, a line per peer on demand.

import { choiceButtons, element, place, toggleButton, write } from "./dom.js";
import { decimal, known } from "./format.js";
import { presentColors } from "./palette.js";

const AXES = { rounds: "rounds", seconds: "seconds", sent: "megabytes sent per peer" };
const CURVE_HEIGHT = 424;

export class Curves {
  constructor(film, changed) {
    this.axis = "rounds";
    this.each = false;
    this.plot = this.line = null;
    this.shown = "";
    this.position = -1;
    const again = () => { this.shown = ""; changed(); };
    place("curves-choices").replaceChildren(
      choiceButtons("Horizontal axis", Object.entries({ rounds: "rounds", seconds: "seconds", sent: "MB" }), this.axis, (axis) => { this.axis = axis; again(); }),
      toggleButton("each peer", false, (on) => { this.each = on; again(); }),
      ...metricChoice(film, again)
    );
    new ResizeObserver(() => this.#resize()).observe(place("curves"));
  }

  draw(film, cursor, _peers, theme) {
    this.film = film;
    const key = `${film.version}|${theme}|${this.axis}|${this.each}|${film.choice}`;
    if (key !== this.shown) this.#build();
    this.shown = key;
    this.position = cursor.live ? -1 : cursor.position;
    if (this.plot) this.#mark();
    this.#describe(cursor);
  }

  #build() {
    const rounds = this.film.frames.filter((frame) => known(this.film.statistics(frame)?.mean));
    if (this.plot) this.plot.destroy();
    this.plot = this.line = null;
    if (!rounds.length) return;
    const { data, series } = this.#series(rounds);
    const colors = presentColors();
    const axis = { stroke: colors.soft, grid: { stroke: colors.line, width: 1 }, ticks: { show: false }, font: "12px system-ui", labelFont: "12px system-ui" };
    const { share } = this.film.metric;
    const options = {
      width: place("curves").clientWidth,
      height: CURVE_HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: true, y: false }, points: { show: false } },
      scales: { x: { time: false }, y: { range: (_, low, high) => spread(low, high, share) } },
      axes: [{ ...axis, label: AXES[this.axis], size: 30, labelSize: 18, labelGap: 0 }, { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => share ? decimal(tick, 2) : String(tick)) }],
      series,
      bands: [{ series: [1, 2], fill: `${colors.accent}26` }],
      hooks: { draw: [() => this.#mark()] }, // after a zoom too
    };
    this.plot = new uPlot(options, data, place("curves"));
    this.line = element("i", { class: "plot-cursor", "aria-hidden": "true" });
    this.plot.over.append(this.line);
    this.#mark();
  }

  #series(frames) {
    const colors = presentColors();
    const x = frames.map((frame) => (this.axis === "rounds" ? frame.round + 1 : this.axis === "seconds" ? frame.seconds : megabytes(this.film, frame.round)));
    const dots = { show: frames.length < 3 };
    const of = (frame) => this.film.statistics(frame) || {};
    const data = [x, frames.map((frame) => of(frame).best), frames.map((frame) => of(frame).worst)];
    const series = [{}, { stroke: `${colors.accent}66`, width: 1, points: dots }, { stroke: `${colors.accent}99`, width: 1, points: dots }];
    if (this.each) {
      this.film.run.peers.forEach((_, peer) => {
        data.push(frames.map((frame) => nullable(this.film.value(this.film.column, peer, frame.round))));
        const cluster = this.film.latest("cluster", peer, this.film.newest);
        const color = Number.isNaN(cluster) ? colors.faint : colors.clusters[cluster % 8];
        series.push({ stroke: `${color}99`, width: 1, points: { show: false }, spanGaps: true });
      });
    }
    const other = this.film.run.other;
    if (other) {
      data.push(frames.map((frame) => of(other.frames[frame.round]).mean ?? null));
      series.push({ stroke: colors.warn, width: 2.5, dash: [7, 5], points: { show: false } });
    }
    data.push(frames.map((frame) => of(frame).mean));
    series.push({ stroke: colors.accent, width: 3, points: dots });
    return { data, series };
  }

  /** Put the line of the replay where it belongs. */
  #mark() {
    if (!this.line) return;
    const frame = this.film.frames[this.position];
    this.line.hidden = !frame;
    if (!frame) return;
    const value = this.axis === "rounds" ? frame.round + 1 : this.axis === "seconds" ? frame.seconds : megabytes(this.film, frame.round);
    this.line.style.transform = `translateX(${Math.round(this.plot.valToPos(value, "x"))}px)`;
  }

  #describe(cursor) {
    const { name, higher_is_better: higher } = this.film.metric;
    write(place("curves-title"), `${name[0].toUpperCase()}${name.slice(1)}${higher ? "" : " (lower is better)"}`);
    const frame = this.film.frames[cursor.position];
    const found = this.film.statistics(frame);
    const numbers = found ? `Round ${frame.round + 1}: mean ${this.film.metricText(found.mean)}, worst ${this.film.metricText(found.worst)}, best ${this.film.metricText(found.best)}.` : "No evaluation yet.";
    const other = this.film.run.other ? ` Dashed: ${this.film.run.other.title}.` : "";
    write(place("curves-note"), `${numbers} Line: mean. Band: worst to best peer.${other}`);
  }

  #resize() {
    const width = place("curves").clientWidth;
    if (this.plot && width && this.plot.width !== width) this.plot.setSize({ width, height: CURVE_HEIGHT });
  }
}

/** Return a list to choose the metric from, where the task has more than one: the curve, the table and the graph show it. */
function metricChoice(film, changed) {
  if (!film.more.length) return [];
  const list = element("select", { id: "metric", "aria-label": "Metric" });
  [film.main, ...film.more].forEach(({ name }, at) => list.append(element("option", { value: at - 1 }, name)));
  list.addEventListener("change", () => { film.choice = Number(list.value); changed(); });
  return [list];
}

function spread(low, high, share) {
  if (low === null || high === null) return [0, 1];
  const space = (high - low || 0.1) * 0.06;
  return share ? [Math.max(0, low - space), Math.min(1, high + space)] : [low - space, high + space];
}

function nullable(value) {
  return Number.isNaN(value) ? null : value;
}

/** Return the megabytes that a peer has sent until the end of a round, mean over the peers. */
function megabytes(film, round) {
  return film.run.peers.reduce((sum, _, peer) => sum + (film.latest("sent", peer, round) || 0), 0) / film.size / 1e6;
}
