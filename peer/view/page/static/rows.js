// Rows of a table in a box that scrolls: all of them, or where there are many only those in sight, between two spaces.

import { element, mark } from "./dom.js";

const ALL_MOST = 100; // rows that are all in the page
const BEYOND = 6; // rows above and below those in sight, so that the Tab key finds the next one

export class Rows {
  /** `make()` returns a new row as an object with its element `row`; `fill(slot, index)` writes one of `count` into it. */
  constructor(scroller, body, count, make, fill) {
    this.scroller = scroller;
    this.body = body;
    this.make = make;
    this.fill = fill;
    this.many = count > ALL_MOST;
    this.slots = new Map(); // index -> its row
    this.order = Array.from({ length: count }, (_, index) => index);
    this.spaces = ["before", "after"].map(() => element("tr", { "aria-hidden": "true", class: "space" }, element("td", {})));
    this.height = 0;
    if (!this.many) return;
    mark(body.parentElement, "aria-rowcount", count + 1);
    body.parentElement.classList.add("many");
    body.append(...this.spaces);
    scroller.addEventListener("scroll", () => this.draw(), { passive: true });
  }

  /** Write the rows in sight, in an order of indices. */
  draw(order = this.order) {
    this.order = order;
    const [first, last] = this.#window();
    const shown = order.slice(first, last);
    const wanted = new Set(shown);
    const free = [...this.slots.keys()].filter((index) => !wanted.has(index)).map((index) => this.#take(index));
    let at = this.many ? this.spaces[0].nextSibling : this.body.firstChild;
    shown.forEach((index, place) => {
      const slot = this.slots.get(index) || free.pop() || this.make();
      this.slots.set(index, slot);
      this.fill(slot, index);
      if (this.many) mark(slot.row, "aria-rowindex", first + place + 2);
      if (slot.row === at) at = at.nextSibling;
      else this.body.insertBefore(slot.row, at);
    });
    for (const slot of free) slot.row.remove();
    if (!this.many) return;
    this.height ||= this.slots.values().next().value.row.offsetHeight;
    this.#space(0, first);
    this.#space(1, order.length - last);
  }

  #window() {
    if (!this.many) return [0, this.order.length];
    const height = this.height || 30;
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / height) - BEYOND);
    return [first, Math.min(this.order.length, first + Math.ceil((this.scroller.clientHeight || 400) / height) + 2 * BEYOND)];
  }

  #take(index) {
    const slot = this.slots.get(index);
    this.slots.delete(index);
    return slot;
  }

  #space(which, rows) {
    this.spaces[which].style.height = `${rows * this.height}px`;
  }
}
