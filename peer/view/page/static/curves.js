// The metric over rounds, seconds or megabytes: the mean, a band from the worst to the best peer, a line per peer on demand.

import { choiceButtons, element, mark, place, toggleButton, write } from "./dom.js";
import { decimal, known } from "./format.js";
import { presentColors } from "./palette.js";

const AXES = { rounds: "rounds", seconds: "seconds", sent: "megabytes sent per peer" };
const WHOLE = [1, 2, 5].flatMap((digit) => [digit, 10 * digit, 100 * digit, 1e3 * digit, 1e4 * digit, 1e5 * digit]).sort((a, b) => a - b); // steps between ticks of rounds

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
    this.frames = this.film.frames.filter((frame) => known(this.film.statistics(frame)?.mean));
    if (this.plot) this.plot.destroy();
    this.plot = this.line = null;
    if (!this.frames.length) return;
    const { data, series } = this.#series(this.frames);
    const colors = presentColors();
    const axis = { stroke: colors.soft, grid: { stroke: colors.line, width: 1 }, ticks: { show: false }, font: "12px system-ui", labelFont: "12px system-ui" };
    const { share } = this.film.metric;
    const options = {
      width: place("curves").clientWidth,
      height: place("curves").clientHeight,
      legend: { show: false },
      cursor: { drag: { x: true, y: false }, points: { show: false } },
      scales: { x: { time: false }, y: { range: (_, low, high) => spread(low, high, share) } },
      axes: [{ ...axis, ...(this.axis === "rounds" ? { incrs: WHOLE } : {}), label: AXES[this.axis], size: 30, labelSize: 18, labelGap: 0, values: (_, ticks) => this.#ticks(ticks) }, { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => share ? decimal(tick, 2) : String(tick)) }],
      series,
      bands: [{ series: [1, 2], fill: `${colors.accent}26` }],
      hooks: { draw: [() => this.#mark()], setCursor: [() => this.#tell()] }, // draw: after a zoom too
    };
    this.plot = new uPlot(options, data, place("curves"));
    this.line = element("i", { class: "plot-cursor", "aria-hidden": "true" });
    this.tip = element("div", { class: "tip", "aria-hidden": "true", hidden: "" });
    this.plot.over.append(this.line, this.tip);
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
    const final = this.#final();
    if (final) {
      data.push(frames.map((_, at) => (at === frames.length - 1 ? final.mean : null)));
      series.push({ stroke: colors.good, points: { show: true, size: 10, fill: colors.good } });
    }
    return { data, series };
  }

  #ticks(ticks) {
    mark(place("curves"), "data-ticks", ticks.join(" "));
    return ticks.map(String);
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

  /** Return the statistics after the final phase, where they are not those of the last round; else null. */
  #final() {
    const final = this.film.final;
    const last = this.film.statistics(this.frames[this.frames.length - 1]);
    return final && known(final.mean) && Math.abs(final.mean - last.mean) > 1e-6 ? final : null;
  }

  /** Show the values under the pointer, in the half of the plot where it is not. */
  #tell() {
    const { idx, left } = this.plot.cursor;
    const frame = known(idx) && left >= 0 ? this.frames[idx] : null;
    this.tip.hidden = !frame;
    if (!frame) return;
    write(this.tip, this.#values(frame));
    const right = left < this.plot.over.clientWidth / 2;
    this.tip.style.left = right ? "auto" : "6px";
    this.tip.style.right = right ? "6px" : "auto";
  }

  #values(frame) {
    const { mean, worst, best } = this.film.statistics(frame);
    const [middle, low, high] = [mean, worst, best].map((value) => this.film.metricText(value));
    return `Round ${frame.round + 1}: mean ${middle}, worst ${low}, best ${high}`;
  }

  #describe(cursor) {
    const { name, higher_is_better: higher } = this.film.metric;
    write(place("curves-title"), `${name[0].toUpperCase()}${name.slice(1)}${higher ? "" : " (lower is better)"}`);
    const frame = this.film.frames[cursor.position];
    const numbers = this.film.statistics(frame) ? `${this.#values(frame)}.` : "No evaluation yet.";
    const final = this.plot && this.#final();
    const after = final ? ` Dot: after the final phase, mean ${this.film.metricText(final.mean)}, worst ${this.film.metricText(final.worst)}.` : "";
    const other = this.film.run.other ? ` Dashed: ${this.film.run.other.title}.` : "";
    write(place("curves-note"), `${numbers} Line: mean. Band: worst to best peer.${after}${other}`);
  }

  #resize() {
    const { clientWidth: width, clientHeight: height } = place("curves");
    if (this.plot && width && (this.plot.width !== width || this.plot.height !== height)) this.plot.setSize({ width, height });
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
