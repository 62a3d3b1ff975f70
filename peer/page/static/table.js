// The table of peers: all that the pictures say, and whom each peer waits for.

import { element, mark, place, write } from "./dom.js";
import { bytesText, known, whole } from "./format.js";
import { isDown } from "./frame.js";
import { colorClass } from "./palette.js";

const COLUMNS = [
  ["id", "peer", "number"],
  ["status", "status", ""],
  ["round", "round", "number"],
  ["behind", "behind", "number"],
  ["metric", "accuracy", "number"],
  ["cluster", "cluster", "number"],
  ["true_cluster", "true", "number"],
  ["alive", "neighbors alive", "number"],
  ["payload_bytes", "sent", "number"],
  ["waits", "waits for, why, and until when", ""],
];

const ALWAYS = 100; // rows that a replay writes in each frame

export class Table {
  constructor(film, open) {
    this.sorted = { key: "id", down: false };
    this.heads = new Map();
    const heads = COLUMNS.map(([key, text, kind]) => {
      const name = key === "metric" ? film.metric.name : text;
      const button = element("button", { type: "button" }, name);
      button.addEventListener("click", () => this.#sortBy(key));
      const head = element("th", { scope: "col", class: kind }, button);
      this.heads.set(key, head);
      return head;
    });
    this.rows = film.run.peers.map((peer, index) => {
      const link = element("button", { type: "button", class: "peer-link", "aria-label": `Open peer ${peer.id}` }, String(peer.id));
      link.addEventListener("click", () => open(index));
      const cells = Object.fromEntries(COLUMNS.map(([key, , kind]) => [key, element("td", { class: kind, "data-field": key })]));
      cells.id = element("th", { scope: "row", class: "number", "data-field": "id" }, link);
      const swatch = element("i", { class: "swatch", "aria-hidden": "true" });
      const cluster = element("span", {});
      cells.cluster.append(swatch, cluster);
      const row = element("tr", { "data-peer": peer.id }, ...COLUMNS.map(([key]) => cells[key]));
      return { index, row, cells: { ...cells, cluster }, swatch, values: { id: peer.id } };
    });
    this.byRow = new Map(this.rows.map((row) => [row.row, row]));
    this.body = element("tbody", {}, ...this.rows.map(({ row }) => row));
    place("table").replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...heads)), this.body));
  }

  draw(film, cursor, peers) {
    for (const row of cursor.playing ? this.#visible() : this.rows) {
      const peer = peers[row.index];
      Object.assign(row.values, peer, { true_cluster: film.truth(row.index) });
      const { cells } = row;
      write(cells.status, peer.status);
      write(cells.round, whole(peer.round));
      write(cells.behind, peer.behind ? whole(peer.behind) : "");
      write(cells.metric, film.metricText(peer.metric));
      write(cells.cluster, known(peer.cluster) ? String(peer.cluster) : "–");
      write(cells.true_cluster, known(row.values.true_cluster) ? String(row.values.true_cluster) : "–");
      write(cells.alive, known(peer.alive) ? `${peer.alive}/${peer.neighbors}` : "–");
      write(cells.payload_bytes, bytesText(peer.payload_bytes));
      write(cells.waits, peer.waits || "");
      mark(cells.metric, "data-value", known(peer.metric) ? peer.metric : "");
      mark(row.row, "data-status", peer.status);
      mark(row.row, "data-down", isDown(peer) ? "yes" : null);
      mark(row.swatch, "class", `swatch ${colorClass(peer.cluster)}`);
    }
    write(place("peers-note"), `${cursor.live ? "Newest state." : `After round ${cursor.position + 1}.`} A peer's number opens its page.`);
    if (this.sorted.key !== "id" && !cursor.playing) this.#order();
  }

  /** Return the rows that a reader can see; the others are written when the replay stops. */
  #visible() {
    if (this.rows.length <= ALWAYS) return this.rows;
    const { scrollTop, clientHeight } = place("table");
    const height = this.body.firstElementChild.offsetHeight || 1;
    const first = Math.max(0, Math.floor(scrollTop / height) - 2);
    return [...this.body.children].slice(first, first + Math.ceil(clientHeight / height) + 4).map((row) => this.byRow.get(row));
  }

  #sortBy(key) {
    this.sorted = { key, down: this.sorted.key === key && !this.sorted.down };
    for (const [other, head] of this.heads) mark(head, "aria-sort", other === key ? (this.sorted.down ? "descending" : "ascending") : null);
    this.#order();
  }

  #order() {
    const { key, down } = this.sorted;
    const sign = down ? -1 : 1;
    const ordered = [...this.rows].sort((a, b) => sign * compare(a.values[key], b.values[key]) || a.index - b.index);
    if (ordered.some((row, at) => this.body.children[at] !== row.row)) this.body.append(...ordered.map(({ row }) => row));
  }
}

function compare(a, b) {
  if (typeof a === "string" && typeof b === "string") return a.localeCompare(b);
  return (a ?? -Infinity) - (b ?? -Infinity);
}
