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
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
  } else { // a page of another machine without TLS has no clipboard
    const field = create('textarea', { class: 'hidden-field', readonly: true });
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand('copy');
    field.remove();
  }
  const before = [...button.childNodes];
  button.replaceChildren(icon('check'), ...before.filter((node) => node.nodeName === 'SPAN').map(() => create('span', {}, 'Copied')));
  button.disabled = true;
  setTimeout(() => {
    button.replaceChildren(...before);
    button.disabled = false;
  }, 1500);
}
