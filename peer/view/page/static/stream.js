// The run's states from the server: one stream a tab, closed while the tab is hidden.

const RETRY_MS = 1000;

export class Stream {
  /** `take(kind, message)` gets "film" (all of the run), "more" (what came since) and "waiting" (no run yet); `say(mode)` gets "live", "waiting" or "stale". */
  constructor(address, take, say) {
    this.address = address;
    this.take = take;
    this.say = say;
    this.last = "";
    this.source = null;
    this.retry = 0;
    document.addEventListener("visibilitychange", () => this.follow());
    window.addEventListener("pagehide", () => this.close());
    this.follow();
  }

  /** Open the stream if the tab is visible, else close it. */
  follow() {
    if (document.hidden) this.close();
    else if (!this.source) this.#open();
  }

  close() {
    clearTimeout(this.retry);
    if (this.source) this.source.close();
    this.source = null;
  }

  #open() {
    const from = this.last ? `?after=${encodeURIComponent(this.last)}` : "";
    const source = new EventSource(this.address + from);
    this.source = source;
    for (const kind of ["film", "more"]) {
      source.addEventListener(kind, (event) => {
        this.last = event.lastEventId;
        this.take(kind, JSON.parse(event.data));
        this.say("live");
      });
    }
    source.addEventListener("waiting", (event) => {
      this.take("waiting", JSON.parse(event.data));
      this.say("waiting");
    });
    source.onerror = () => {
      this.say("stale");
      if (source.readyState !== EventSource.CLOSED || this.source !== source) return; // the browser connects again
      this.source = null; // it gave up, for example at a refusal
      this.retry = setTimeout(() => this.follow(), RETRY_MS);
    };
  }
}
