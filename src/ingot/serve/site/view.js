// Messages as elements: text, code, thoughts, files, errors, and what can be done with them.

import { written } from './chats.js';
import { copy, create, icon, iconButton } from './dom.js';
import { blocks, codeBlock } from './markdown.js';

/**
 * Draws a message. state: {siblings, isRunning, isBusy, isPlain, isEdited, context}. isRunning: of this message; isBusy:
 * of the conversation. act: the functions edit, save, cancel, again, choose, plain. Returns the element and `update`,
 * which shows what an answer has gained.
 */
export function message(node, state, act) {
  const element = create('li', { class: `message ${node.role}${state.isEdited ? ' editing' : ''}`, 'data-id': node.id });
  element.append(create('h2', { class: 'hidden-text' }, node.role === 'user' ? 'You' : 'Model'));
  if (state.isEdited) {
    element.append(...editor(node, act));
    return { element, update: () => {} };
  }
  return node.role === 'user' ? question(element, node, state, act) : reply(element, node, state, act);
}

function question(element, node, state, act) {
  for (const { name, text } of node.files ?? []) {
    element.append(create('details', { class: 'file' }, create('summary', {}, `${name}, ${sizeOf(text)}`), create('pre', { tabindex: '0' }, text)));
  }
  if (node.content) element.append(create('div', { class: 'bubble' }, node.content));
  element.append(tools(node, state, act, [
    copyButton(() => written(node)),
    iconButton('edit', 'Edit this message', () => act.edit(node), { disabled: state.isBusy }),
  ]));
  return { element, update: () => {} };
}

function reply(element, node, state, act) {
  const body = create('div', { class: 'text' });
  const thoughts = create('div', {});
  const folded = create('details', { class: 'thoughts', hidden: true }, create('summary', {}, 'Thoughts'), thoughts);
  const waiting = create('div', { class: 'waiting', role: 'img', 'aria-label': 'The model reads the conversation' }, create('i'), create('i'), create('i'));
  const draw = drawer(body, node, state.isPlain);
  const update = () => {
    folded.hidden = !node.reasoning;
    thoughts.textContent = node.reasoning ?? '';
    folded.firstChild.textContent = state.isRunning && !node.content ? 'Thinking…' : 'Thoughts';
    waiting.hidden = !state.isRunning || Boolean(node.content);
    draw(node.content);
  };
  update();
  element.append(folded, waiting, body);
  if (state.isRunning) {
    element.setAttribute('aria-busy', 'true');
    return { element, update };
  }
  if (node.error) element.append(failure(node, state, act));
  if (node.note) element.append(create('p', { class: 'note' }, node.note));
  const again = iconButton('again', 'Regenerate', () => act.again(node), { disabled: state.isBusy });
  const ofText = [
    copyButton(() => node.content), again,
    iconButton('edit', 'Edit this answer', () => act.edit(node), { disabled: state.isBusy }),
    iconButton('text', 'Show as plain text', () => act.plain(node), { 'aria-pressed': String(state.isPlain) }),
  ];
  element.append(tools(node, state, act, node.content ? ofText : node.error ? [] : [again]));
  return { element, update };
}

/** Returns a function that shows a text; blocks that it had before keep their elements. */
function drawer(body, node, isPlain) {
  let shown = [];
  return (text) => {
    if (isPlain) {
      body.replaceChildren(create('pre', { class: 'plain' }, text));
      return;
    }
    const fresh = node.isJson && text ? [{ source: text, draw: () => codeBlock(indented(text), 'json') }] : blocks(text);
    let same = 0;
    while (same < Math.min(shown.length, fresh.length) && shown[same] === fresh[same].source) same++;
    while (body.childNodes.length > same) body.lastChild.remove();
    body.append(...fresh.slice(same).map(({ draw }) => draw()));
    shown = fresh.map(({ source }) => source);
  };
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // an answer that goes on, or that was cut
  }
}

function failure(node, state, act) {
  const button = create('button', { type: 'button', class: 'main-button', click: () => act.again(node), disabled: state.isBusy }, 'Try again');
  return create('div', { class: 'failure', role: 'alert' }, icon('warning'), create('p', {}, node.error),
    node.detail ? create('p', { class: 'detail' }, node.detail) : null, button);
}

function tools(node, { siblings }, act, actions) {
  const row = create('div', { class: 'tools' });
  if (siblings.length > 1) {
    const index = siblings.indexOf(node);
    const turn = (step) => act.choose(siblings[index + step]);
    row.append(create('span', { class: 'versions' },
      iconButton('left', 'Version before', () => turn(-1), { disabled: index === 0 }),
      create('span', { 'aria-label': `Version ${index + 1} of ${siblings.length}` }, `${index + 1}/${siblings.length}`),
      iconButton('right', 'Version after', () => turn(1), { disabled: index === siblings.length - 1 })));
  }
  row.append(create('span', { class: 'actions' }, ...actions));
  if (node.stats) row.append(create('span', { class: 'stats' }, statistics(node.stats)));
  return row;
}

/** Returns the numbers of an answer as text. Times are in milliseconds. */
export function statistics({ tokens, per_second: speed, first_ms: first, used, context }) {
  const parts = [`${tokens} token${tokens === 1 ? '' : 's'}`];
  if (speed > 0) parts.push(`${speed < 10 ? speed.toFixed(1) : Math.round(speed)} tokens/s`);
  if (first !== undefined) parts.push(`first token after ${first < 1000 ? `${Math.round(first)} ms` : `${(first / 1000).toFixed(1)} s`}`);
  if (used && context) parts.push(`context ${used} of ${context}`);
  return parts.join(' · ');
}

function copyButton(text) {
  const button = iconButton('copy', 'Copy', () => copy(text(), button));
  return button;
}

function editor(node, act) {
  const field = create('textarea', { class: 'editor', 'aria-label': 'Text of the message' });
  field.value = node.content;
  const save = () => act.save(node, field.value);
  field.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && !event.isComposing && !event.shiftKey && node.role === 'user') {
      event.preventDefault();
      save();
    }
  });
  const words = node.role === 'user' ? 'The message before stays as a version.' : 'The answer before stays as a version.';
  return [field, create('div', { class: 'edit-row' }, create('p', { class: 'hint' }, words),
    create('button', { type: 'button', class: 'quiet-button', click: act.cancel }, 'Cancel'),
    create('button', { type: 'button', class: 'main-button', click: save }, node.role === 'user' ? 'Send this version' : 'Save'))];
}

export function sizeOf(text) {
  const bytes = new Blob([text]).size;
  return bytes < 1024 ? `${bytes} bytes` : `${(bytes / 1024).toFixed(1)} KiB`;
}
