// Where the page looks: at the newest state (live), or at a past round (replay), which can move by itself.

export const SPEEDS = [1, 2, 5, 10, 20];

export class Cursor {
  constructor(changed) {
    this.round = null; // of a replay; null: the newest state
    this.newest = -1;
    this.playing = false;
    this.speed = 5; // rounds a second
    this.changed = changed;
    this.due = 0;
    this.shown = 0; // frames that a replay has shown
  }

  get live() {
    return this.round === null;
  }

  /** The round that is looked at, from 0. */
  get position() {
    return this.live ? this.newest : Math.min(this.round, this.newest);
  }

  /** Look at a round. */
  seek(round) {
    if (this.newest < 0) return;
    this.round = Math.max(0, Math.min(round, this.newest));
    this.changed();
  }

  step(rounds) {
    this.pause();
    this.seek(this.position + rounds);
  }

  goLive() {
    this.playing = false;
    this.round = null;
    this.changed();
  }

  play() {
    if (this.newest < 1) return;
    if (this.live || this.round >= this.newest) this.round = 0;
    this.playing = true;
    this.due = performance.now() + 1000 / this.speed;
    this.changed();
    requestAnimationFrame((now) => this.#move(now));
  }

  pause() {
    this.playing = false;
    this.changed();
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  setSpeed(speed) {
    this.speed = speed;
    this.changed();
  }

  #move(now) {
    if (!this.playing) return;
    if (now >= this.due) {
      this.due = Math.max(this.due + 1000 / this.speed, now);
      if (this.round >= this.newest) {
        this.pause();
        return;
      }
      this.shown += 1;
      this.seek(this.round + 1);
    }
    requestAnimationFrame((next) => this.#move(next));
  }
}
