// The table of peers: all that the pictures say, and whom each peer waits for.

import { element, mark, place, write } from "./dom.js";
import { bytesText, known, whole } from "./format.js";
import { aloneText, isDown, statusText } from "./frame.js";
import { colorClass } from "./palette.js";
import { Rows } from "./rows.js";

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

export class Table {
  constructor(film, open) {
    this.film = film;
    this.open = open;
    this.peers = [];
    this.sorted = { key: "id", down: false };
    this.heads = new Map();
    const heads = COLUMNS.map(([key, text, kind]) => {
      const button = element("button", { type: "button" }, text);
      if (key === "metric") this.measure = button;
      button.addEventListener("click", () => this.#sortBy(key));
      const head = element("th", { scope: "col", class: kind }, button);
      this.heads.set(key, head);
      return head;
    });
    const body = element("tbody", {});
    place("table").replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body));
    this.rows = new Rows(place("table"), body, film.size, () => this.#row(), (slot, index) => this.#fill(slot, index));
    this.order = this.rows.order;
  }

  #row() {
    const link = element("button", { type: "button", class: "peer-link" });
    const slot = { index: 0, link };
    link.addEventListener("click", () => this.open(slot.index));
    const cells = Object.fromEntries(COLUMNS.map(([key, , kind]) => [key, element("td", { class: kind, "data-field": key })]));
    cells.id = element("th", { scope: "row", class: "number", "data-field": "id" }, link);
    slot.swatch = element("i", { class: "swatch", "aria-hidden": "true" });
    const cluster = element("span", {});
    cells.cluster.append(slot.swatch, cluster);
    slot.row = element("tr", {}, ...COLUMNS.map(([key]) => cells[key]));
    slot.cells = { ...cells, cluster };
    return slot;
  }

  draw(film, cursor, peers) {
    this.peers = peers;
    write(this.measure, film.metric.name);
    if (this.sorted.key !== "id" && !cursor.playing) this.#arrange();
    this.rows.draw(this.order);
    write(place("peers-note"), `${cursor.live ? "Newest state." : `After round ${cursor.position + 1}.`} A peer's number opens its page.`);
  }

  #fill(slot, index) {
    const peer = this.peers[index];
    const id = this.film.run.peers[index].id;
    const truth = this.film.truth(index);
    const { cells, row } = slot;
    slot.index = index;
    write(slot.link, String(id));
    mark(slot.link, "aria-label", `Open peer ${id}`);
    write(cells.status, statusText(peer));
    write(cells.round, whole(peer.round));
    write(cells.behind, peer.behind ? whole(peer.behind) : "");
    write(cells.metric, this.film.metricText(peer.metric));
    write(cells.cluster, known(peer.cluster) ? String(peer.cluster) : "–");
    write(cells.true_cluster, known(truth) ? String(truth) : "–");
    write(cells.alive, known(peer.alive) ? `${peer.alive}/${peer.neighbors}` : "–");
    write(cells.payload_bytes, bytesText(peer.totals.payload_bytes_sent ?? 0));
    write(cells.waits, peer.waits || (peer.totals.rounds_alone ? `${aloneText(peer)} without any neighbor` : ""));
    mark(cells.metric, "data-value", known(peer.metric) ? peer.metric : "");
    mark(row, "data-peer", id);
    mark(row, "data-status", peer.status);
    mark(row, "data-down", isDown(peer) ? "yes" : null);
    mark(slot.swatch, "class", `swatch ${colorClass(peer.cluster)}`);
  }

  #sortBy(key) {
    this.sorted = { key, down: this.sorted.key === key && !this.sorted.down };
    for (const [other, head] of this.heads) mark(head, "aria-sort", other === key ? (this.sorted.down ? "descending" : "ascending") : null);
    this.#arrange();
    this.rows.draw(this.order);
  }

  #arrange() {
    const { key, down } = this.sorted;
    const sign = down ? -1 : 1;
    this.order = [...this.rows.order].sort((a, b) => sign * compare(this.#value(a, key), this.#value(b, key)) || a - b);
  }

  #value(index, key) {
    if (key === "id") return this.film.run.peers[index].id;
    if (key === "payload_bytes") return this.peers[index].totals.payload_bytes_sent ?? 0;
    return key === "true_cluster" ? this.film.truth(index) : this.peers[index][key];
  }
}

function compare(a, b) {
  if (typeof a === "string" && typeof b === "string") return a.localeCompare(b);
  return (a ?? -Infinity) - (b ?? -Infinity);
}
