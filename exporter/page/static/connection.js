// The stream of states: comes back by itself, says when nothing is heard.

const QUIET_SECONDS = 5;
const GIVE_UP_SECONDS = 15;
const AGAIN_SECONDS = 5;
const HIDDEN_SECONDS = 30;

/** Calls `take` with each state and `say` with how the connection is: a text, and whether it is well. */
export class Connection {
  constructor(take, say) {
    this.take = take;
    this.say = say;
    this.heard = performance.now();
    this.source = null;
    this.hiddenSince = null;
    this.#open();
    setInterval(() => this.#look(), 1000);
    document.addEventListener("visibilitychange", () => {
      this.hiddenSince = document.hidden ? performance.now() : null;
      if (!document.hidden && this.source === null) this.#open();
    });
  }

  #open() {
    this.source?.close();
    this.source = new EventSource("api/v1/live");
    this.heard = performance.now();
    this.source.addEventListener("state", (event) => {
      this.heard = performance.now();
      this.say("live", true);
      this.take(JSON.parse(event.data));
    });
    this.source.addEventListener("error", () => {
      // A refused stream (an error status) is not tried again by the browser itself.
      if (this.source?.readyState === EventSource.CLOSED) {
        this.source = null;
        this.say("connection lost, trying again", false);
        setTimeout(() => this.source ?? this.#open(), 1000 * AGAIN_SECONDS);
      }
    });
  }

  #look() {
    const now = performance.now();
    // A browser allows few connections to one host: a page that nobody sees gives its own back.
    if (this.hiddenSince !== null && now - this.hiddenSince > 1000 * HIDDEN_SECONDS) {
      this.source?.close();
      this.source = null;
      return;
    }
    const quiet = (now - this.heard) / 1000;
    if (quiet < QUIET_SECONDS) return;
    this.say(`connection lost ${Math.round(quiet / 5) * 5} s ago, trying again`, false);
    if (quiet > GIVE_UP_SECONDS && this.source?.readyState === EventSource.OPEN) this.#open();
  }
}
