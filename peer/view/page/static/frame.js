// One peer at the cursor, and the whole run: of the newest state when live, of the histories' lines in a replay.

import { counted, decimal, durationText, known, whole } from "./format.js";

const DOWN = ["dead", "silent", "diverged", "refused", "behind", "alone", "failed"];
const ENDED = ["completed", "left", "missing"];

/** Return what the page shows of a peer; `round` null is the newest state. */
export function peerAt(film, peer, round) {
  return round === null ? newestPeer(film, peer) : replayedPeer(film, peer, round);
}

/** Return what the page shows of all peers. */
export function peersAt(film, round) {
  return film.run.peers.map((_, peer) => peerAt(film, peer, round));
}

/** Return the numbers of the whole run at a round of a replay, in which the peers are these. */
export function runAt(film, round, peers) {
  const rounds = peers.map((peer) => peer.round);
  return {
    ...film.frames[round],
    rounds_min: Math.min(...rounds),
    rounds_max: Math.max(...rounds),
    totals: { payload_bytes_sent: peers.reduce((sum, peer) => sum + (peer.totals.payload_bytes_sent || 0), 0) },
    alive: peers.filter((peer) => peer.status === "running").length,
    down: peers.filter(isDown).length,
    states: statesOf(peers),
  };
}

/** Return the number of peers in each status. */
function statesOf(peers) {
  const states = {};
  for (const { status } of peers) states[status] = (states[status] || 0) + 1;
  return states;
}

/** Return a peer's status, with the exit code of a process that an error ended, or the signal that did. */
export function statusText(peer) {
  if (peer.exit_code < 0) return `${peer.status}, signal ${-peer.exit_code}`;
  return peer.exit_code ? `${peer.status}, exit code ${peer.exit_code}` : peer.status;
}

/** Return whether a peer has stopped without completing its run. */
export function isDown(peer) {
  return DOWN.includes(peer.status);
}

function newestPeer(film, peer) {
  const row = film.state.peers[peer];
  const behind = behindOf(row.status, film.state.header.rounds_max - row.round);
  const metric = film.choice < 0 ? row.metric : row.metrics[film.choice];
  return { ...row, metric, behind, neighbors: film.neighbors[peer].length, waits: presentWait(row) };
}

function replayedPeer(film, peer, round) {
  const at = film.roundUntil(peer, round);
  const entry = film.entryAt(film.statuses[peer], film.secondsAt(round));
  const status = entry ? entry.status : "missing";
  return {
    status,
    round: at + 1,
    behind: behindOf(status, round - at),
    metric: film.latest(film.column, peer, round),
    cluster: orNone(film.latest("cluster", peer, round)),
    alive: orNone(film.latest("alive", peer, round)),
    neighbors: film.neighbors[peer].length,
    totals: { rounds_alone: film.sum("lonely", peer, round), payload_bytes_sent: film.latest("sent", peer, round) },
    waits: pastWait(film, peer, at),
  };
}

function behindOf(status, rounds) {
  return ENDED.includes(status) ? 0 : Math.max(0, rounds);
}

function orNone(value) {
  return Number.isNaN(value) ? null : value;
}

/** Return how many rounds a peer was without any neighbor: `5 of 7 rounds`, or "" for none. */
export function aloneText(peer) {
  return peer.totals.rounds_alone ? `${whole(peer.totals.rounds_alone)} of ${counted(peer.round, "round")}` : "";
}

function presentWait(row) {
  if (row.silent) return `no answer: ${row.silent}`;
  if (row.status !== "running") return "";
  return [awaited(row), row.alone].filter(Boolean).join("; ");
}

function awaited(row) {
  if (!row.why?.length) return row.stage || "";
  const until = known(row.until_s) ? `; at most ${durationText(row.until_s)} more` : "";
  return `${row.stage ? "waits for" : "needs"} ${row.why.join("; ")}${until}`;
}

function pastWait(film, peer, round) {
  if (round < 0) return "no round completed yet";
  const waited = film.value("wait", peer, round);
  const missing = film.texts.missing[peer][round] || [];
  const alone = film.value("lonely", peer, round) ? "; without any neighbor" : "";
  const text = (Number.isNaN(waited) ? "" : `waited ${decimal(waited, 2)} s in this round`) + alone;
  const late = `closed without models of peer ${missing.slice(0, 5).join(", ")}`;
  const more = missing.length > 5 ? ` and ${counted(missing.length - 5, "other")}` : "";
  return missing.length ? `${text}; ${late}${more}` : text;
}
