// The websocket to the server: reconnects by itself, brings the API key, hands out events.

import { keep, kept } from "../chat/tab";

const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 8000;
const CONNECT_TIMEOUT_MS = 10_000;
const KEY = "unicorn-api-key";

export type ServerEvent = Record<string, unknown> & { type: string };

export interface Listener {
  opened(): void;
  closed(): void;
  received(event: ServerEvent): void;
  unauthorized(hadKey: boolean): void;
}

export class Connection {
  isOpen = false;
  private socket: WebSocket | null = null;
  private delay = FIRST_DELAY_MS;
  private isBarred = false; // by a server that wants another key; it is asked now and then whether it still does
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly listener: Listener) {}

  start(): void {
    this.connect();
    window.addEventListener("online", () => {
      this.retryNow();
    });
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.retryNow();
    });
  }

  send(text: string): void {
    this.socket?.send(text);
  }

  // The headers that a request to the API needs.
  get headers(): Record<string, string> {
    const key = kept(KEY);
    return key ? { authorization: `Bearer ${key}` } : {};
  }

  setKey(key: string): void {
    keep(KEY, key);
    this.isBarred = false;
    this.drop(); // what was asked without it
    this.retryNow();
  }

  // Gives up a connection over which nothing comes any more, without waiting for the other side.
  drop(): void {
    const socket = this.socket;
    if (!socket) return;
    socket.close();
    this.closed(socket);
  }

  private connect(): void {
    const url = new URL("/v1/responses?events=unicorn", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url);
    this.socket = socket;
    this.timer = setTimeout(() => {
      this.drop();
    }, CONNECT_TIMEOUT_MS);
    socket.addEventListener("open", () => {
      if (socket === this.socket) this.opened();
    });
    socket.addEventListener("message", (message: MessageEvent<string>) => {
      if (socket === this.socket) this.received(message.data);
    });
    socket.addEventListener("close", () => {
      this.closed(socket);
    });
  }

  private opened(): void {
    clearTimeout(this.timer);
    // Also without a key: a server that wants one says so at once, another takes no notice.
    this.send(JSON.stringify({ type: "unicorn.auth", key: kept(KEY) ?? "" }));
    if (!this.isBarred) this.ready();
  }

  private ready(): void {
    this.isBarred = false;
    this.isOpen = true;
    this.listener.opened();
  }

  private received(data: string): void {
    this.delay = FIRST_DELAY_MS;
    const event = JSON.parse(data) as ServerEvent;
    if (event.type === "error" && event["status"] === 401) {
      const hadKey = kept(KEY) !== null;
      keep(KEY, null);
      if (!this.isBarred) this.listener.unauthorized(hadKey);
      this.isBarred = true;
      return;
    }
    if (this.isBarred) this.ready();
    this.listener.received(event);
  }

  private closed(socket: WebSocket): void {
    if (socket !== this.socket) return;
    this.socket = null;
    this.isOpen = false;
    clearTimeout(this.timer);
    this.listener.closed();
    this.timer = setTimeout(() => {
      this.retryNow();
    }, this.isBarred ? LONGEST_DELAY_MS : this.delay);
    this.delay = Math.min(this.delay * 2, LONGEST_DELAY_MS);
  }

  private retryNow(): void {
    if (this.socket) return;
    clearTimeout(this.timer);
    this.connect();
  }
}
