// News for screen readers, with restraint: deaths, returns and the end; at most one sentence at a time, none in a replay.

import { place, write } from "./dom.js";

const LOUD = new Set(["dead", "restart", "lost"]);

export class Announcer {
  constructor() {
    this.seen = null;
    this.running = null;
  }

  hear(film) {
    const events = film.state.events.filter((event) => LOUD.has(event.kind));
    const fresh = this.seen === null ? [] : events.filter((event) => event.cursor > this.seen);
    this.seen = Math.max(0, ...events.map((event) => event.cursor));
    if (fresh.length) write(place("announcer"), sentence(fresh[fresh.length - 1]));
    if (this.running && !film.running) write(place("announcer"), "The run has ended.");
    this.running = film.running;
  }
}

function sentence(event) {
  return event.peer === null ? event.text : `Peer ${event.peer}: ${event.text}`;
}
