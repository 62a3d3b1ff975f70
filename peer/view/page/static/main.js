// The page: takes states of the run, and draws them in every view at the cursor.

import { Announcer } from "./announce.js";
import { Clusters } from "./clusters.js";
import { Collaboration } from "./collaboration.js";
import { Cursor } from "./cursor.js";
import { Curves } from "./curves.js";
import { place } from "./dom.js";
import { Film } from "./film.js";
import { peersAt } from "./frame.js";
import { Graph } from "./graph.js";
import { Header } from "./header.js";
import { Matrix } from "./matrix.js";
import { Panel } from "./panel.js";
import { Phases } from "./phases.js";
import { ReplayBar } from "./replay.js";
import { Stream } from "./stream.js";
import { Table } from "./table.js";
import { followTheme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { Traffic } from "./traffic.js";

let film = null;
let views = [];
let mode = "connecting";
let theme = 0;
let waiting = false;

const cursor = new Cursor(redraw);
const header = new Header();
const bar = new ReplayBar(cursor);
const announcer = new Announcer();
const panel = new Panel(redraw);
const open = (peer) => panel.open(peer, film.run.peers[peer].id);

function take(kind, message) {
  if (kind === "waiting") {
    header.waits(message.directory);
    return;
  }
  if (kind === "film") {
    document.body.dataset.film = "yes"; // the views have their sizes from now on
    film = new Film(message);
    views = [new Graph(film, open), new Curves(film, redraw), new Clusters(film, (round) => cursor.seek(round), open), new Collaboration(), new Matrix(), new Table(film, open), new Phases(film), new Traffic(), new Timeline(redraw), panel];
  } else if (film) {
    film.add(message);
  }
  cursor.newest = film.newest;
  announcer.hear(film);
  redraw();
}

/** Draw all views at the next frame of the screen, once. */
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    if (film) draw();
    else header.say(mode);
  });
}

function draw() {
  const began = performance.now();
  const peers = peersAt(film, cursor.round);
  header.draw(film, cursor, peers, mode);
  bar.draw(film, cursor);
  for (const view of views) view.draw(film, cursor, peers, theme);
  const { dataset } = document.body;
  dataset.ready = "yes";
  dataset.position = cursor.position;
  dataset.frames = cursor.shown;
  dataset.films = film.version;
  document.dispatchEvent(new CustomEvent("drawn", { detail: performance.now() - began })); // milliseconds, for benchmarks
}

followTheme(() => { theme += 1; redraw(); });
const saved = place("film");
if (saved) {
  mode = "file";
  take("film", JSON.parse(saved.textContent));
} else {
  if (location.search) history.replaceState(null, "", location.pathname); // the token is used up
  const stream = new Stream("stream", take, (said) => { mode = said; redraw(); });
  document.body.dataset.stream = stream.address;
}
window.addEventListener("resize", redraw);
