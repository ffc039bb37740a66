// Elements of the page. No function here reads text as HTML.

const SVG = 'http://www.w3.org/2000/svg'; // the name of the format; nothing is fetched

/** Returns the element of the page with an id. */
export const at = (id) => document.getElementById(id);

/** Creates an element. properties: attributes, and listeners as functions by their event; null ones are left out. */
export function create(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (typeof value === 'function') element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Creates an icon of the page's sheet; it has no name for screen readers. */
export function icon(name) {
  const picture = document.createElementNS(SVG, 'svg');
  const use = document.createElementNS(SVG, 'use');
  use.setAttribute('href', `#icon-${name}`);
  picture.setAttribute('aria-hidden', 'true');
  picture.classList.add('icon');
  picture.append(use);
  return picture;
}

/** Creates a button with an icon. label: its name, shown as a tooltip. */
export function iconButton(name, label, click, properties) {
  return create('button', { type: 'button', class: 'icon-button', 'aria-label': label, title: label, click, ...properties }, icon(name));
}

/** Copies text, and shows on the button that it is copied. */
export async function copy(text, button) {
  // A page of another machine has no clipboard without TLS, and a browser may forbid it.
  const isCopied = await (navigator.clipboard?.writeText(text).then(() => true, () => false) ?? false);
  if (!isCopied) copySelected(text);
  const before = [...button.childNodes];
  const words = before.some(({ nodeName }) => nodeName === 'SPAN') ? [create('span', {}, 'Copied')] : [];
  button.replaceChildren(icon('check'), ...words);
  button.disabled = true;
  setTimeout(() => {
    button.replaceChildren(...before);
    button.disabled = false;
  }, 1500);
}

function copySelected(text) {
  const field = create('textarea', { class: 'hidden-field', readonly: true });
  const focused = document.activeElement;
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand('copy');
  field.remove();
  focused.focus();
}
