// The dialog with the server's models: lists them, has one loaded in the place of the last, or unloads that.

const $ = (id) => document.getElementById(id);
const SERVED = new Set(["loading", "ready"]);
const WORDS = { waiting: "waits", closing: "waits", opening: "opening", loading: "loading", ready: "loaded", error: "failed" };

export class ModelPicker {
  constructor(connection) {
    this.connection = connection;
    this.turn = 0;
    this.state = { model: null, status: "empty" };
    $("models-button").addEventListener("click", () => this.open());
    $("unload").addEventListener("click", () => this.ask("unload", {}));
    // A press beside the dialog closes it; on the dialog itself the target is one of its parts or its padding.
    $("models-dialog").addEventListener("click", (event) => {
      const box = $("models-dialog").getBoundingClientRect();
      const isInside = box.left <= event.clientX && event.clientX <= box.right && box.top <= event.clientY && event.clientY <= box.bottom;
      if (event.target === $("models-dialog") && !isInside) $("models-dialog").close();
    });
  }

  setAvailable(canSwitch) {
    $("models-button").hidden = !canSwitch;
  }

  // Which model the server has, or will have; an open dialog follows.
  showState(model, status) {
    this.state = { model, status };
    if ($("models-dialog").open) this.list();
  }

  open() {
    this.showError("");
    $("models-list").replaceChildren();
    $("models-dialog").showModal();
    this.list();
  }

  async list() {
    const turn = ++this.turn;
    let models;
    try {
      models = (await this.request("models")).data;
    } catch (error) {
      if (turn === this.turn) this.showError(error.message);
      return;
    }
    if (turn !== this.turn) return;
    const focused = document.activeElement;
    $("models-list").replaceChildren(...models.map((model) => this.item(model)));
    $("unload").hidden = !models.some((model) => model.loaded);
    const buttons = [...$("models-list").querySelectorAll("button")];
    if (focused === $("models-title")) buttons[0]?.focus();
    else buttons.find((button) => button.dataset.model === focused.dataset.model)?.focus();
  }

  item({ id, status }) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "model";
    button.dataset.model = id;
    const name = Object.assign(document.createElement("span"), { className: "name", textContent: id });
    button.append(name);
    if (id === this.state.model && WORDS[this.state.status]) {
      status = this.state.status; // newer than the list
      button.append(Object.assign(document.createElement("span"), { className: "state", textContent: WORDS[status] }));
    }
    if (SERVED.has(status)) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => {
      if (status === "ready") $("models-dialog").close();
      else this.ask("load", { model: id });
    });
    const item = document.createElement("li");
    item.append(button);
    return item;
  }

  async ask(action, body) {
    this.showError("");
    try {
      await this.request(`models/${action}`, body);
      $("models-dialog").close();
    } catch (error) {
      this.showError(error.message);
    }
  }

  async request(path, body) {
    const options = { headers: this.connection.headers, cache: "no-store" };
    if (body) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    let response;
    try {
      response = await fetch(`/v1/${path}`, options);
    } catch {
      throw new Error("the server does not answer");
    }
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error?.message ?? `the server answered with status ${response.status}`);
    return answer;
  }

  showError(message) {
    $("models-error").hidden = !message;
    $("models-error").textContent = message;
  }
}
