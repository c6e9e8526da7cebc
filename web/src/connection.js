// The websocket to the server: reconnects by itself, brings the API key, hands out events.

const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 8000;
const KEY = "unicorn-api-key";

export class Connection extends EventTarget {
  // Events: "open", "closed", "message" (detail: the server's event), "unauthorized".
  constructor() {
    super();
    this.isOpen = false;
    this.delay = FIRST_DELAY_MS;
    this.connect();
    window.addEventListener("online", () => this.retryNow());
    document.addEventListener("visibilitychange", () => document.hidden || this.retryNow());
  }

  send(event) {
    this.socket.send(JSON.stringify(event));
  }

  // The headers that a request to the API needs.
  get headers() {
    const key = sessionStorage.getItem(KEY);
    return key ? { authorization: `Bearer ${key}` } : {};
  }

  setKey(key) {
    sessionStorage.setItem(KEY, key);
    this.isBarred = false;
    this.retryNow();
  }

  connect() {
    const url = new URL("/v1/responses?events=unicorn", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url);
    this.socket = socket;
    socket.addEventListener("open", () => this.opened());
    socket.addEventListener("message", (message) => this.received(message.data));
    socket.addEventListener("close", () => this.closed(socket));
  }

  opened() {
    this.isOpen = true;
    // Also without a key: a server that wants one says so at once, another takes no notice.
    this.send({ type: "unicorn.auth", key: sessionStorage.getItem(KEY) ?? "" });
    this.dispatchEvent(new Event("open"));
  }

  received(data) {
    this.delay = FIRST_DELAY_MS;
    const event = JSON.parse(data);
    if (event.type === "error" && event.status === 401) {
      this.isBarred = true;
      const hadKey = sessionStorage.getItem(KEY) !== null;
      sessionStorage.removeItem(KEY);
      this.dispatchEvent(new CustomEvent("unauthorized", { detail: { hadKey } }));
      return;
    }
    this.dispatchEvent(new CustomEvent("message", { detail: event }));
  }

  closed(socket) {
    if (socket !== this.socket) return;
    this.isOpen = false;
    this.dispatchEvent(new Event("closed"));
    if (this.isBarred) return;
    this.timer = setTimeout(() => this.retryNow(), this.delay);
    this.delay = Math.min(this.delay * 2, LONGEST_DELAY_MS);
  }

  retryNow() {
    if (this.isBarred || this.socket.readyState < WebSocket.CLOSING) return;
    clearTimeout(this.timer);
    this.connect();
  }
}
