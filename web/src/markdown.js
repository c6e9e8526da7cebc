// A small part of Markdown as DOM nodes: fenced code, headings, bold, inline code. Text only ever becomes text nodes.

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^#{1,6}\s+(.*)$/;
const INLINE = /(`+)([^`]+?)\1(?!`)|\*\*(?=\S)([^*]+?)\*\*/g;

export function render(text) {
  const fragment = document.createDocumentFragment();
  let prose = [];
  let code = null;

  const flush = () => {
    const joined = prose.join("\n").replace(/^\n+|\s+$/g, "");
    prose = [];
    for (const paragraph of joined.split(/\n{2,}/)) {
      if (paragraph) fragment.append(renderParagraph(paragraph));
    }
  };

  for (const line of text.split("\n")) {
    const fence = FENCE.exec(line);
    if (code) {
      if (fence && fence[1].startsWith(code.mark) && !fence[2]) {
        fragment.append(renderCode(code));
        code = null;
      } else {
        code.lines.push(line);
      }
    } else if (fence) {
      flush();
      code = { mark: fence[1], language: fence[2], lines: [] };
    } else {
      prose.push(line);
    }
  }
  flush();
  if (code) fragment.append(renderCode(code));
  return fragment;
}

function renderParagraph(text) {
  const paragraph = document.createElement("p");
  text.split("\n").forEach((line, index) => {
    if (index) paragraph.append("\n");
    const heading = HEADING.exec(line);
    if (heading) paragraph.append(element("strong", heading[1].replace(/\*\*/g, "")));
    else appendInline(paragraph, line);
  });
  return paragraph;
}

function appendInline(parent, text) {
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    parent.append(text.slice(end, match.index));
    parent.append(match[1] ? element("code", match[2]) : element("strong", match[3]));
    end = match.index + match[0].length;
  }
  parent.append(text.slice(end));
}

function renderCode({ language, lines }) {
  const pre = document.createElement("pre");
  pre.tabIndex = 0; // wide code scrolls, also by keyboard
  pre.append(element("code", lines.join("\n")));
  if (language) pre.dataset.language = language;
  return pre;
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}
