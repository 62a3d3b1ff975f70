// What happened when: faults, deaths, refusals, failed checkpoints, restarts.

import { choiceButtons, element, mark, place, vector } from "./dom.js";
import { durationText } from "./format.js";

const SHOWN_MOST = 200;
const GROUPS = {
  all: () => true,
  faults: (event) => event.kind === "fault",
  peers: (event) => !["fault", "refused"].includes(event.kind),
  refusals: (event) => event.kind === "refused",
};

export class Timeline {
  constructor(changed) {
    this.group = "all";
    place("timeline-choices").replaceChildren(choiceButtons("Events", Object.keys(GROUPS).map((name) => [name, name]), "all", (group) => { this.group = group; changed(); }));
    this.band = vector("svg", { class: "band", viewBox: "0 0 1000 28", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.list = element("ol", { class: "events", tabindex: "0", "aria-label": "Events, newest first" });
    this.times = element("div", { class: "times", "aria-hidden": "true" });
    place("timeline").replaceChildren(this.band, this.times, this.list);
  }

  draw(film, cursor) {
    if (cursor.playing && film.state.events.length > 2000) return;
    const until = cursor.live ? Infinity : film.secondsAt(cursor.position);
    const events = film.state.events.filter((event) => event.at <= until && GROUPS[this.group](event));
    const key = `${film.version}|${this.group}|${events.length}`;
    if (key === this.shown) return;
    this.shown = key;
    const end = Math.max(1e-3, film.state.header.seconds || 0, ...film.state.events.slice(-1).map((event) => event.at));
    this.band.replaceChildren(...events.slice(-2000).map((event) => vector("rect", { x: (997 * event.at) / end, y: 4, width: 3, height: 20, class: `event-${toneOf(event)}` })));
    this.times.replaceChildren(...[0, 1, 2, 3, 4].map((part) => element("span", {}, durationText((end * part) / 4))));
    const items = events.slice(-SHOWN_MOST).reverse().map((event) => element("li", { "data-kind": event.kind, "data-peer": event.peer ?? "", class: `tone-${toneOf(event)}` },
      element("time", {}, durationText(event.at)), element("b", {}, event.kind), element("span", {}, sentenceOf(event))));
    if (events.length > SHOWN_MOST) items.push(element("li", {}, `and ${events.length - SHOWN_MOST} earlier events`));
    if (!items.length) items.push(element("li", { class: "quiet" }, "Nothing happened yet."));
    this.list.replaceChildren(...items);
    mark(this.list, "data-events", events.length);
  }
}

/** Return an entry as text: whom it is about, what happened, and who says so. */
export function sentenceOf(event) {
  const about = event.peer === null ? "" : `peer ${event.peer}: `;
  const others = event.by.filter((id) => id !== event.peer);
  const more = others.length > 8 ? ` and ${others.length - 8} more` : "";
  const by = others.length ? ` (${others.length === 1 ? "says peer" : "say peers"} ${others.slice(0, 8).join(", ")}${more})` : "";
  return `${about}${event.text}${by}`;
}

function toneOf(event) {
  if (["dead", "refused", "diverged", "fault"].includes(event.kind) || event.kind.startsWith("checkpoint")) return "bad";
  if (["suspect", "gap", "silent", "lost"].includes(event.kind)) return "warn";
  return "good";
}
