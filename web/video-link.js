// One video on one WebSocket: pairs each metadata with its payload, and says what the server said.

const PING_MS = 20_000;
const POSITION_MS = 500;
const CLOSED_NORMALLY = 1000;

/**
 * `on` gets `start(message)`, `payload(metadata, buffer)`, `queued(id)`, `applied(id, seconds)`, `superseded(id, by)`,
 * `refused(id, error)`, `error(error)` and, last and once, `end(done)`: the server's `session.done`, or null.
 */
export class VideoLink {
  #socket;
  #on;
  #metadata = null;
  #timescale = 1;
  #timers = [];
  #started = false;
  #done = null;
  #failed = false;
  #ended = false;

  constructor({ url, key, start, on, position }) {
    this.#on = on;
    const protocols = key ? ["streamsynth", `bearer.${key}`] : ["streamsynth"];
    const socket = (this.#socket = new WebSocket(url, protocols));
    socket.binaryType = "arraybuffer";
    socket.addEventListener("open", () => {
      if (this.#ended) return;
      this.#send({ type: "session.start", receipts: true, ...start });
      this.#timers = [
        setInterval(() => this.#send({ type: "session.ping" }), PING_MS),
        setInterval(() => this.#report(position()), POSITION_MS),
      ];
    });
    socket.addEventListener("message", ({ data }) => this.#take(data));
    socket.addEventListener("close", ({ code, reason }) => this.#close(code, reason));
  }

  steer(interaction) {
    this.#send({ type: "session.interaction", interaction });
  }

  /** What is made still comes; of a video that has not begun nothing is, and the end is now. */
  stop() {
    if (this.#started) this.#send({ type: "session.stop" });
    else this.abandon();
  }

  /** Without waiting for anything that is still made. */
  abandon() {
    this.#socket.close();
    this.#end();
  }

  #send(message) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  #report(seconds) {
    if (seconds !== null) this.#send({ type: "playback.position", pts: Math.floor(seconds * this.#timescale) });
  }

  #take(data) {
    if (this.#ended) return;
    if (typeof data !== "string") {
      this.#on.payload(this.#metadata, data);
      return;
    }
    const message = JSON.parse(data);
    switch (message.type) {
      case "video.start":
        this.#started = true;
        return this.#on.start(message);
      case "video.chunk_metadata":
        this.#metadata = message;
        this.#timescale = message.timescale;
        return;
      case "session.interaction.queued":
        return this.#on.queued(message.event_id);
      case "session.interaction.applied":
        return this.#on.applied(message.event_id, message.pts / this.#timescale);
      case "session.interaction.superseded":
        return this.#on.superseded(message.event_id, message.by);
      case "session.done":
        this.#done = message;
        return;
      case "error":
        if (message.event_id !== undefined && !message.fatal) return this.#on.refused(message.event_id, message);
        this.#failed = true;
        this.#on.error(message);
        // The only answer to a start that was refused: there is nothing to wait for.
        if (!this.#metadata) this.abandon();
    }
  }

  #close(code, reason) {
    if (!this.#ended && code !== CLOSED_NORMALLY && !this.#failed && !this.#done) {
      const lost = code === 1006;
      this.#on.error({ code: lost ? "connection_lost" : "connection_closed", message: lost ? "" : reason });
    }
    this.#end();
  }

  #end() {
    if (this.#ended) return;
    this.#ended = true;
    for (const timer of this.#timers) clearInterval(timer);
    this.#on.end(this.#done);
  }
}
