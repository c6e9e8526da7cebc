// The chat page: a conversation kept here, sent whole with each message; the server keeps nothing of it.

import { Connection } from "./connection";
import { loadNumbers } from "./load";
import { MarkdownView } from "./markdown";
import { ModelPicker } from "./models";

const $ = (id) => document.getElementById(id);
const prompt = $("prompt");
const log = $("log");
const scroller = $("scroller");

const connection = new Connection();
const picker = new ModelPicker(connection);
let messages = []; // what the model is told: {role, content}
let answer = null; // the answer under way
let isModelReady = true; // as far as one knows
let lastAnswering = null; // the model that answered last here
let healthAt = 0;
let asked = 0; // each request has a stream of its own, so that no event is taken for another's

// --- what the server says of itself -------------------------------------------------------------------------------

async function readHealth() {
  const turn = ++healthAt;
  try {
    const health = await (await fetch("/health", { cache: "no-store" })).json();
    if (turn !== healthAt) return;
    picker.setAvailable(health.can_switch);
    if (health.device) {
      $("device").textContent = health.device.name;
      $("software").hidden = !health.device.software;
    } else {
      $("device").textContent = health.status === "opening" ? "opening a device…" : "no device in use";
      $("software").hidden = true;
    }
  } catch {
    $("device").textContent = "the server does not answer";
  }
}

// The text beside the bar says what a model's state means for who waits.
const stateTexts = {
  empty: () => "No model is loaded: choose one under Models",
  waiting: (model) => `Answers under way end first; then ${model ? `${model} is loaded` : "the model is unloaded"}`,
  closing: (model) => (model ? `The last model is closed, then ${model} is loaded` : "The model is unloaded"),
  opening: (model) => `Opening ${model}`,
  loading: (model) => `Loading ${model}`,
  ready: () => "",
  error: (model, error) => `${model} could not be loaded: ${error}`,
};

function showModel({ model, status, error }) {
  $("model").textContent = model ?? "No model";
  document.title = `${model ?? "No model"} · unicorn_async`;
  isModelReady = status === "ready";
  $("load").hidden = isModelReady;
  $("load").classList.toggle("idle", status === "empty" || status === "error");
  $("load").classList.toggle("failed", status === "error");
  $("load-bar").removeAttribute("value");
  $("load-numbers").textContent = "";
  $("load-text").textContent = stateTexts[status]?.(model, error) ?? status;
  picker.showState(model, status);
  readHealth();
  showWaiting();
}

function showLoad(progress) {
  if (progress.done) return; // the model's state follows
  $("load-bar").value = progress.share;
  $("load-numbers").textContent = loadNumbers(progress);
}

// --- the conversation ---------------------------------------------------------------------------------------------

function addMessage(role) {
  $("welcome").hidden = true;
  const article = document.createElement("article");
  article.className = `message ${role}`;
  const name = document.createElement("span");
  name.className = "hidden";
  name.textContent = { user: "You said:", assistant: "The model said:", problem: "Problem:" }[role];
  const body = document.createElement("div");
  body.className = "body";
  article.append(name, body);
  log.append(article);
  return article;
}

function addProblem(text) {
  const article = addMessage("problem");
  article.lastChild.textContent = text;
  scrollDown(true);
}

function addNote(article, text) {
  const note = document.createElement("p");
  note.className = "note";
  note.textContent = text;
  article.append(note);
}

function ask(text) {
  if (answer || !connection.isOpen || !text.trim()) return;
  addMessage("user").lastChild.textContent = text;
  messages.push({ role: "user", content: text });
  const article = addMessage("assistant");
  article.setAttribute("aria-busy", "true"); // read out once, when it is complete
  answer = { article, body: article.lastChild, view: new MarkdownView(article.lastChild), stream: `chat-${++asked}`, text: "", tokens: 0, isStopping: false };
  $("speed").textContent = "";
  connection.send({ type: "response.create", stream_id: answer.stream, input: messages, store: false });
  showWaiting();
  showState();
  scrollDown(true);
}

function showWaiting() {
  if (!answer || answer.text) return;
  const text = isModelReady ? "" : "Your answer comes as soon as the model is loaded";
  answer.body.replaceChildren(Object.assign(document.createElement("span"), { className: "waiting", textContent: text }));
}

function addText(delta) {
  if (!answer.text) answer.startedAt = performance.now();
  answer.text += delta;
  answer.tokens += 1;
  if (!answer.frame) answer.frame = requestAnimationFrame(drawAnswer);
}

function drawAnswer() {
  if (!answer) return;
  answer.frame = 0;
  if (answer.body.querySelector(".waiting")) answer.body.replaceChildren();
  answer.view.show(answer.text);
  showSpeed(answer.tokens);
  scrollDown(false);
}

function showSpeed(tokens) {
  const seconds = (performance.now() - answer.startedAt) / 1000;
  // The clock starts with the first token, so one token less has come in that time.
  if (tokens > 1 && seconds > 0) $("speed").textContent = `${((tokens - 1) / seconds).toFixed(1)} tokens/s`;
}

function finish(response, note) {
  if (!answer) return;
  const { article, frame, text, body, view } = answer;
  cancelAnimationFrame(frame);
  if (body.querySelector(".waiting")) body.replaceChildren();
  view.show(text);
  if (text && response?.usage) {
    showSpeed(response.usage.output_tokens);
  }
  article.removeAttribute("aria-busy");
  if (text) messages.push({ role: "assistant", content: text });
  else if (!note) note = "(The answer is empty.)";
  if (note) addNote(article, note);
  answer = null;
  showState();
  scrollDown(false);
}

function stop() {
  if (!answer || answer.isStopping) return;
  answer.isStopping = true;
  connection.send({ type: "response.cancel", stream_id: answer.stream });
  showState();
}

function newChat() {
  if (answer) {
    stop();
    finish(null, "Stopped");
  }
  messages = [];
  log.replaceChildren();
  $("welcome").hidden = false;
  $("speed").textContent = "";
  prompt.focus();
}

// --- events -------------------------------------------------------------------------------------------------------

const endings = {
  "response.completed": () => "",
  "response.incomplete": (response) => (response.status === "cancelled" ? "Stopped" : "The answer has reached its length limit"),
  "response.failed": (response) => `The answer broke off: ${response.error?.message ?? "unknown error"}`,
};

connection.addEventListener("message", ({ detail: event }) => {
  if (event.type === "unicorn.model") {
    showModel(event);
  } else if (event.type === "unicorn.load.progress") {
    showLoad(event);
  } else if (event.type === "error") {
    if (event.error.code === "response_not_found") return; // it ended while "stop" was on its way
    if (answer && event.stream_id === answer.stream) refuse(event.error.message);
    else addProblem(event.error.message);
  } else if (answer && event.stream_id === answer.stream) {
    if (event.type === "response.created") noteModel(event.response.model);
    else if (event.type === "response.output_text.delta") addText(event.delta);
    else if (event.type in endings) finish(event.response, endings[event.type](event.response));
  }
});

function noteModel(model) {
  if (lastAnswering !== null && lastAnswering !== model && messages.length > 1) {
    const line = Object.assign(document.createElement("p"), { className: "switched", textContent: `${model} answers now` });
    answer.article.before(line);
  }
  lastAnswering = model;
}

function refuse(message) {
  const { content } = messages.pop(); // the server did not take it: back to where it can be changed
  answer.article.previousSibling.remove();
  answer.article.remove();
  answer = null;
  addProblem(message);
  if (!prompt.value) {
    prompt.value = content;
    fitPrompt();
  }
  showState();
}

connection.addEventListener("open", () => {
  readHealth();
  showState();
});

connection.addEventListener("closed", () => {
  finish(null, "The connection was lost");
  showState();
});

connection.addEventListener("unauthorized", ({ detail }) => {
  $("key-error").hidden = !detail.hadKey;
  if (!$("key-dialog").open) $("key-dialog").showModal();
});

$("key-form").addEventListener("submit", () => {
  connection.setKey($("key").value.trim());
  $("key").value = "";
});

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = prompt.value;
  if (answer || !connection.isOpen || !text.trim()) return;
  prompt.value = "";
  fitPrompt();
  ask(text);
});

prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) stop();
});

prompt.addEventListener("input", fitPrompt);
$("stop").addEventListener("click", stop);
$("new-chat").addEventListener("click", newChat);
for (const example of document.querySelectorAll(".example")) {
  example.addEventListener("click", () => ask(example.textContent));
}

// --- the looks ----------------------------------------------------------------------------------------------------

function fitPrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
  showState();
}

function showState() {
  const isBusy = answer !== null;
  const hadFocus = document.activeElement === $("stop") || document.activeElement === $("send");
  $("send").hidden = isBusy;
  $("stop").hidden = !isBusy;
  $("stop").disabled = isBusy && answer.isStopping;
  $("send").disabled = !connection.isOpen || !prompt.value.trim();
  for (const example of document.querySelectorAll(".example")) example.disabled = !connection.isOpen;
  if (hadFocus) prompt.focus();
  $("status").textContent = connection.isOpen ? "" : "Connecting…";
  $("status").classList.toggle("problem", !connection.isOpen);
}

let isPinned = true; // to the end of the conversation, until the reader scrolls up

scroller.addEventListener("scroll", () => {
  isPinned = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
});

function scrollDown(isForced) {
  if (isForced || isPinned) scroller.scrollTop = scroller.scrollHeight;
}

showState();
