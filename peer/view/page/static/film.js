// The film of a run: every peer in every round, as Python's reducer gave it. Frames are looked up here, never computed anew.

import { decimal, known } from "./format.js";

const NUMBERS = ["metric_value", "cluster", "seconds", "sent", "alive", "lonely", "train", "wait", "fold", "evaluate", "other"];
const TEXTS = ["folded", "missing", "mixture", "collaborators"];
export const PHASES = ["train", "wait", "fold", "evaluate", "other"];

export class Film {
  constructor(document) {
    this.run = document.run;
    this.size = this.run.peers.length;
    this.more = document.state.header.more_metrics || []; // the task's other metrics
    this.choice = -1; // which of them is shown; -1: the task's metric
    this.numbers = [...NUMBERS, ...this.more.map((_, at) => `more${at}`)];
    this.capacity = Math.max(this.run.rounds_total || 0, 16);
    this.columns = Object.fromEntries(this.numbers.map((name) => [name, unknowns(this.size * this.capacity)]));
    this.texts = Object.fromEntries(TEXTS.map((name) => [name, this.run.peers.map(() => [])]));
    this.last = new Int32Array(this.size).fill(-1);
    this.frames = [];
    this.state = { header: {}, peers: [], events: [], warnings: [] };
    this.statuses = this.run.peers.map(() => []);
    this.links = new Map(); // linkKey -> what a peer said of a neighbor, and when
    this.kinds = new Map(); // "a-b", by id: direct, tunnel, relay
    this.indexOf = new Map(this.run.peers.map((peer, index) => [peer.id, index]));
    this.neighbors = this.run.peers.map(() => []);
    this.run.edges.forEach(([a, b]) => {
      this.neighbors[a].push(b);
      this.neighbors[b].push(a);
    });
    this.neighbors.forEach((list) => list.sort((a, b) => this.run.peers[a].id - this.run.peers[b].id));
    this.version = 0;
    this.add(document);
  }

  /** Add what a message has: strips of rounds, frames, events, statuses, links, and the newest state. */
  add(message) {
    for (const strip of message.strips || []) this.#addStrip(strip);
    for (const frame of message.frames || []) this.frames[frame.round] = frame;
    for (const [at, peer, status] of message.statuses || []) this.statuses[this.indexOf.get(peer)]?.push({ at, status });
    for (const [at, peer, neighbor, state] of message.links || []) {
      const key = this.#linkKey(this.indexOf.get(peer), this.indexOf.get(neighbor));
      if (!this.links.has(key)) this.links.set(key, []);
      this.links.get(key).push({ at, state });
    }
    this.#addState(message.state);
    this.version += 1;
  }

  #addState({ header, peers, edges, timeline, warnings }) {
    for (const peer of peers) this.state.peers[this.indexOf.get(peer.id)] = peer;
    for (const { a, b, kind } of edges) this.kinds.set(`${a}-${b}`, kind);
    Object.assign(this.state, { header, warnings, events: timeline });
  }

  #addStrip(strip) {
    const peer = this.indexOf.get(strip.peer);
    const length = strip.seconds.length;
    while (strip.round + length > this.capacity) this.#grow();
    for (const name of this.numbers) {
      const column = this.columns[name];
      const start = peer * this.capacity + strip.round;
      (strip[name] || []).forEach((value, at) => { column[start + at] = value === null ? NaN : value; });
    }
    for (const name of TEXTS) {
      (strip[name] || []).forEach((value, at) => { this.texts[name][peer][strip.round + at] = value; });
    }
    this.last[peer] = Math.max(this.last[peer], strip.round + length - 1);
  }

  #grow() {
    const wider = this.capacity * 2;
    for (const name of this.numbers) {
      const column = unknowns(this.size * wider);
      for (let peer = 0; peer < this.size; peer += 1) {
        column.set(this.columns[name].subarray(peer * this.capacity, (peer + 1) * this.capacity), peer * wider);
      }
      this.columns[name] = column;
    }
    this.capacity = wider;
  }

  /** Return the true cluster of a peer, or null. */
  truth(peer) {
    return this.state.peers[peer].true_cluster;
  }

  /** Return the peers' places in the order of their true clusters. */
  byTruth() {
    return this.run.peers.map((_, index) => index).sort((a, b) => (this.truth(a) ?? 0) - (this.truth(b) ?? 0) || a - b);
  }

  /** The task's metric: its `name`, whether `higher_is_better`, and whether it is a `share` in [0, 1]. */
  get main() {
    return this.state.header.metric;
  }

  /** The metric that is shown: the task's own, or the one of its others that was chosen. */
  get metric() {
    return this.more[this.choice] || this.main;
  }

  /** The column of the metric that is shown. */
  get column() {
    return this.choice < 0 ? "metric_value" : `more${this.choice}`;
  }

  /** Return mean, worst and best of the shown metric in a frame; undefined if it has none. */
  statistics(frame) {
    return this.choice < 0 ? frame : frame?.more?.[this.choice];
  }

  /** Return a value of a metric as text, as the report writes it. */
  metricText(value, metric = this.metric) {
    const small = Math.abs(value) < 0.001 && Math.abs(value) > 1e-9; // smaller: rounding

    return !known(value) || (metric.share && !small) ? decimal(value) : String(Number(value.toPrecision(4)));
  }

  /** The statistics of the shown metric at the end of the run, after the final phase; null while a peer runs. */
  get final() {
    if (this.running) return null;
    return this.choice < 0 ? this.state.header : this.state.header.more_metrics?.[this.choice];
  }

  /** Whether a peer still runs. */
  get running() {
    return !this.state.header.ended;
  }

  /** The newest round that a peer has completed, from 0; -1 before the first. */
  get newest() {
    return this.frames.length - 1;
  }

  /** Return the value of a column in a round; NaN if it is not known. */
  value(name, peer, round) {
    return round < 0 || round >= this.capacity ? NaN : this.columns[name][peer * this.capacity + round];
  }

  /** Return the peer's last completed round up to a round; -1 if there is none. */
  roundUntil(peer, round) {
    let at = Math.min(round, this.last[peer]);
    while (at >= 0 && Number.isNaN(this.value("seconds", peer, at))) at -= 1;
    return at;
  }

  /** Return the latest known value of a column up to a round. */
  latest(name, peer, round) {
    let at = Math.min(round, this.last[peer]);
    while (at >= 0 && Number.isNaN(this.value(name, peer, at))) at -= 1;
    return this.value(name, peer, at);
  }

  /** Return the sum of a column over all rounds up to a round. */
  sum(name, peer, round) {
    let total = 0;
    for (let at = Math.min(round, this.last[peer]); at >= 0; at -= 1) total += this.value(name, peer, at) || 0;
    return total;
  }

  /** Return the seconds of the run at the end of a round. */
  secondsAt(round) {
    return this.frames[round] ? this.frames[round].seconds : Infinity;
  }

  /** Return the number of models that a peer folded from a neighbor in a round. */
  foldedFrom(peer, neighbor, round) {
    const text = this.texts.folded[peer][round];
    const at = text ? this.neighbors[peer].indexOf(neighbor) : -1;
    return at >= 0 && at < text.length && text[at] !== "0" ? parseInt(text[at], 36) : 0;
  }

  /** Return how two peers reach each other: direct, proxy, tunnel or relay. */
  kind(a, b) {
    const ids = [this.run.peers[a].id, this.run.peers[b].id].sort((x, y) => x - y);
    return this.kinds.get(ids.join("-")) || "direct";
  }

  #linkKey(peer, neighbor) {
    return peer * this.size + neighbor;
  }

  /** Return `mixture` or `collaborators` of a peer in its latest round with one, or null. */
  chosen(name, peer, round) {
    for (let at = Math.min(round, this.last[peer]); at >= 0; at -= 1) {
      if (this.texts[name][peer][at]) return this.texts[name][peer][at];
    }
    return null;
  }

  /** Return the latest entry of a list with `at` up to some seconds, or null. */
  entryAt(list, seconds) {
    let low = 0, high = list ? list.length : 0;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle].at <= seconds) low = middle + 1;
      else high = middle;
    }
    return low ? list[low - 1] : null;
  }

  /** Return what a peer says of a neighbor at a time: alive, suspect, dead, left or unknown. */
  linkAt(peer, neighbor, seconds) {
    const said = this.links.get(this.#linkKey(peer, neighbor));
    const entry = said ? this.entryAt(said, seconds) : null;
    return entry ? entry.state : "unknown";
  }
}

function unknowns(length) {
  return new Float64Array(length).fill(NaN);
}
