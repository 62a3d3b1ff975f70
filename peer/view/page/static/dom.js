// Elements without HTML strings: text goes in through textContent only.

const SVG = "http://www.w3.org/2000/svg";

/** Return a new HTML element with attributes and children (nodes or strings). */
export function element(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/** Return a new SVG element with attributes and children (nodes or strings). */
export function vector(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

function furnish(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) mark(node, name, value);
  node.append(...children);
  return node;
}

/** Set the text of a node, if it differs. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set an attribute, if it differs; null removes it. */
export function mark(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Return the element with an id. */
export function place(id) {
  return document.getElementById(id);
}

/** Return buttons of which one is pressed; `choose` is called with its value. */
export function choiceButtons(label, options, chosen, choose) {
  const group = element("div", { role: "group", "aria-label": label, class: "segments" });
  for (const [value, text] of options) {
    const button = element("button", { type: "button", "aria-pressed": String(value === chosen) }, text);
    button.addEventListener("click", () => {
      for (const other of group.children) mark(other, "aria-pressed", String(other === button));
      choose(value);
    });
    group.append(button);
  }
  return group;
}

/** Return a button that is on or off; `change` is called with its new state. */
export function toggleButton(text, on, change) {
  const button = element("button", { type: "button", "aria-pressed": String(on), class: "toggle" }, text);
  button.addEventListener("click", () => {
    const next = button.getAttribute("aria-pressed") !== "true";
    mark(button, "aria-pressed", String(next));
    change(next);
  });
  return button;
}
