// The replay bar: play, slider, speed, back to live; and the page's keys.

import { SPEEDS } from "./cursor.js";
import { element, mark, place, write } from "./dom.js";
import { durationText } from "./format.js";

const OWN_KEYS = "input, select, textarea, [role=slider]";

export class ReplayBar {
  constructor(cursor) {
    this.cursor = cursor;
    this.play = element("button", { type: "button", id: "play", class: "round" });
    this.slider = element("input", { type: "range", id: "slider", min: 0, max: 0, step: 1, "aria-label": "Round" });
    this.label = element("output", { id: "at", for: "slider" });
    this.speed = element("select", { id: "speed", "aria-label": "Speed of the replay" });
    for (const speed of SPEEDS) this.speed.append(element("option", { value: speed }, `${speed} rounds/s`));
    this.speed.value = String(cursor.speed);
    this.live = element("button", { type: "button", id: "live" }, "Newest");
    const keys = element("span", { class: "keys", "aria-hidden": "true" }, "Space, ← →, Home, End, L");
    place("replay").append(element("div", { class: "replay-row" }, this.play, this.slider, this.label, this.speed, this.live, keys));
    this.play.addEventListener("click", () => cursor.toggle());
    this.slider.addEventListener("input", () => {
      cursor.playing = false;
      cursor.seek(Number(this.slider.value));
    });
    this.speed.addEventListener("change", () => cursor.setSpeed(Number(this.speed.value)));
    this.live.addEventListener("click", () => cursor.goLive());
    document.addEventListener("keydown", (event) => this.#key(event));
  }

  draw(film, cursor) {
    mark(this.slider, "max", Math.max(film.newest, 1)); // a range of 0 is drawn as a full bar
    this.slider.value = String(Math.max(cursor.position, 0));
    mark(this.slider, "aria-valuetext", `after round ${cursor.position + 1}`);
    const seconds = film.frames[cursor.position] ? durationText(film.frames[cursor.position].seconds) : "";
    write(this.label, film.newest < 0 ? "no round yet" : `round ${cursor.position + 1} of ${film.newest + 1} · ${seconds}`);
    mark(this.label, "data-round", cursor.position);
    mark(this.play, "aria-label", cursor.playing ? "Pause the replay" : "Play the replay");
    mark(this.play, "data-playing", String(cursor.playing));
    mark(this.live, "aria-pressed", String(cursor.live));
    this.play.disabled = this.slider.disabled = film.newest < 1;
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest(OWN_KEYS)) return;
    if (event.target.closest("button, a, [tabindex]") && [" ", "Enter", "Home", "End"].includes(event.key)) return;
    const actions = {
      " ": () => this.cursor.toggle(),
      ArrowLeft: () => this.cursor.step(-1),
      ArrowRight: () => this.cursor.step(1),
      Home: () => this.cursor.seek(0),
      End: () => this.cursor.seek(this.cursor.newest),
      l: () => this.cursor.goLive(),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }
}
