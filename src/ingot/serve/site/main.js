// The page: which conversation is shown, sending, stopping, and the list at the side.

import { add, before, ChatError, conversation, exported, forget, idOf, imported, newChat, path, remove, save, stored, storedKeys, titleOf, versions } from './chats.js';
import { connect, model, report, server } from './connection.js';
import { at, create, iconButton } from './dom.js';
import { attach, attached, clearFiles, download, picked } from './files.js';
import { answer, ServerError } from './server.js';
import { fields, lastSettings, openSettings } from './settings.js';
import { message } from './view.js';

const NEAR = 60; // pixels from the end within which new text is scrolled to
const SAVE_EACH = 1000; // milliseconds, of an answer in progress
const THEME = 'ingot.theme';
const chats = new Map();
const running = new Map(); // by the conversation's id: {controller, node, saved}
const plain = new Set(); // ids of answers shown as plain text
let current = newChat(lastSettings());
let edited = null;
let updates = new Map(); // by the message's id

// -- drawing -----------------------------------------------------------------------------------------------------------

function draw() {
  drawList();
  drawMessages();
  drawComposer();
}

function drawList() {
  const title = titleOf(current);
  document.title = path(current).length ? `${title} – Ingot` : 'Ingot';
  if (document.activeElement !== at('title')) at('title').value = path(current).length ? title : '';
  at('title').disabled = at('export').disabled = !path(current).length;
  at('export-all').disabled = !chats.size;
  const sorted = [...chats.values()].sort((a, b) => b.changed - a.changed);
  at('chats').replaceChildren(...sorted.map((chat) => {
    const isCurrent = chat.id === current.id;
    const name = titleOf(chat);
    return create('li', { class: isCurrent ? 'current' : null },
      create('button', { type: 'button', class: `open${running.has(chat.id) ? ' busy' : ''}`, 'aria-current': isCurrent ? 'true' : null, title: name, click: () => show(chat) }, name),
      iconButton('delete', `Delete ${name}`, () => removeChat(chat)));
  }));
}

function drawMessages() {
  const nodes = path(current);
  const focused = focusedButton();
  const isBusy = running.has(current.id);
  updates = new Map();
  at('messages').replaceChildren(...nodes.map((node) => {
    const state = {
      siblings: versions(current, node.parent), isRunning: running.get(current.id)?.node === node, isBusy,
      isPlain: plain.has(node.id), isEdited: node.id === edited,
    };
    const { element, update } = message(node, state, act);
    updates.set(node.id, update);
    return element;
  }));
  if (focused) at('messages').children[focused.index]?.querySelector(`button[aria-label="${focused.label}"]:enabled`)?.focus();
  at('empty').hidden = nodes.length > 0;
  at('messages').hidden = !nodes.length;
  const known = model();
  at('greeting').textContent = known ? `Ask ${known.id}` : 'Ask the model';
  const context = known?.max_model_len ? `The model reads up to ${known.max_model_len.toLocaleString('en')} tokens. ` : '';
  at('facts').textContent = `${context}Conversations stay in this browser.`;
  drawEnd();
}

/** Returns which button of which message has the focus, so that it has it after the messages are drawn anew. */
function focusedButton() {
  const element = document.activeElement;
  const index = [...at('messages').children].indexOf(element.closest('.message'));
  const label = element.getAttribute('aria-label');
  return index >= 0 && element.localName === 'button' && label ? { index, label } : null;
}

function drawComposer() {
  const isBusy = running.has(current.id);
  at('stop').hidden = !isBusy;
  at('send').hidden = isBusy;
  at('send').disabled = !at('message').value.trim() && !attached.length;
}

const distance = () => at('log').scrollHeight - at('log').scrollTop - at('log').clientHeight;
const toEnd = () => { at('log').scrollTop = at('log').scrollHeight; };
const drawEnd = () => { at('to-end').hidden = distance() < NEAR * 2; };

let scheduled = false;
/** Shows what running answers have gained, once for each frame. */
function grow() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    const isAtEnd = distance() < NEAR;
    const node = running.get(current.id)?.node;
    if (node) updates.get(node.id)?.();
    if (isAtEnd) toEnd();
    drawEnd();
  });
}

let toastTimer = 0;
function toast(text, label, action) {
  const button = label ? create('button', { type: 'button', click: () => { action(); at('toast').replaceChildren(); } }, label) : null;
  at('toast').replaceChildren(...[create('span', {}, text), button].filter(Boolean));
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => at('toast').replaceChildren(), 7000);
}

// -- conversations -----------------------------------------------------------------------------------------------------

function show(chat) {
  current = chat;
  edited = null;
  history.replaceState(null, '', chats.has(chat.id) ? `#${chat.id}` : location.pathname + location.search);
  document.body.classList.remove('side-open');
  at('menu').setAttribute('aria-expanded', 'false');
  draw();
  toEnd();
  drawEnd();
  if (matchMedia('(hover: hover)').matches) at('message').focus();
}

function keep(chat) {
  chats.set(chat.id, chat);
  try {
    save(chat);
  } catch (error) {
    if (!(error instanceof ChatError)) throw error;
    toast(error.message);
  }
}

function removeChat(chat) {
  running.get(chat.id)?.controller.abort();
  chats.delete(chat.id);
  forget(chat);
  if (chat.id === current.id) show(newChat(lastSettings()));
  else drawList();
  toast('Conversation deleted.', 'Undo', () => {
    keep(chat);
    show(chat);
  });
}

function load(key) {
  try {
    const chat = stored(key);
    if (chat) chats.set(chat.id, chat);
  } catch (error) {
    if (!(error instanceof ChatError)) throw error;
    toast(error.message);
  }
}

async function importFiles(files) {
  let count = 0;
  for (const file of files) {
    try {
      const found = imported(await file.text());
      found.forEach(keep);
      count += found.length;
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      toast(`${file.name}: ${error.message}`);
      return;
    }
  }
  drawList();
  toast(`${count} conversation${count === 1 ? '' : 's'} imported.`);
}

// -- answers -----------------------------------------------------------------------------------------------------------

const act = {
  edit(node) {
    edited = node.id;
    drawMessages();
    const field = at('messages').querySelector('.editor');
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  },
  cancel() {
    edited = null;
    drawMessages();
    at('message').focus();
  },
  save(node, content) {
    edited = null;
    if (node.role === 'user') {
      ask(node.parent, content.trim(), node.files);
      return;
    }
    if (content !== node.content) add(current, node.parent, { role: 'assistant', content, model: node.model });
    keep(current);
    draw();
  },
  again(node) {
    if (!node.content) remove(current, node);
    generate(current, node.parent);
  },
  choose(node) {
    current.chosen[node.parent] = node.id;
    keep(current);
    drawMessages();
  },
  plain(node) {
    if (!plain.delete(node.id)) plain.add(node.id);
    drawMessages();
  },
};

/** Adds the user's message after another one, and generates the answer. */
function ask(parent, content, files = []) {
  const node = add(current, parent, { role: 'user', content, ...(files.length && { files }) });
  keep(current);
  history.replaceState(null, '', `#${current.id}`);
  generate(current, node.id);
}

async function generate(chat, parent) {
  let request;
  try {
    request = fields(chat.settings);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    changeSettings();
    return;
  }
  const node = add(chat, parent, { role: 'assistant', content: '', model: at('model').value, ...(request.response_format && { isJson: true }) });
  const job = { controller: new AbortController(), node, saved: performance.now() };
  running.set(chat.id, job);
  draw();
  toEnd();
  at('status').textContent = 'The model answers.';
  try {
    await receive(chat, job, { ...request, model: node.model || undefined, messages: conversation(chat.settings.system, before(chat, node)) });
  } catch (error) {
    if (job.controller.signal.aborted) node.note = 'Stopped.';
    else if (error instanceof ServerError) fail(node, error);
    else throw error;
  } finally {
    running.delete(chat.id);
    if (chats.has(chat.id)) keep(chat);
    const isAtEnd = distance() < NEAR;
    draw();
    if (isAtEnd) toEnd();
    at('status').textContent = node.error ?? node.note ?? 'The answer is complete.';
  }
}

/** Adds the chunks of an answer to its message. */
async function receive(chat, job, request) {
  const { node, controller } = job;
  const begin = performance.now();
  let first = 0;
  let count = 0;
  let end = '';
  for await (const { choices, usage, timings } of answer(request, server.key, controller.signal)) {
    const delta = choices[0]?.delta ?? {};
    node.content += delta.content ?? '';
    if (delta.reasoning_content) node.reasoning = (node.reasoning ?? '') + delta.reasoning_content;
    if (delta.content || delta.reasoning_content) {
      const now = performance.now();
      first ||= now;
      count++;
      node.stats = { tokens: count, first_ms: first - begin, per_second: count > 1 ? (1000 * (count - 1)) / (now - first) : 0 };
    }
    end = choices[0]?.finish_reason ?? end;
    if (usage) {
      node.stats = {
        tokens: usage.completion_tokens, used: usage.total_tokens, context: model()?.max_model_len ?? 0,
        first_ms: timings?.prompt_ms ?? first - begin, per_second: timings?.predicted_per_second ?? node.stats?.per_second ?? 0,
      };
    }
    if (performance.now() - job.saved > SAVE_EACH && chats.has(chat.id)) {
      job.saved = performance.now();
      keep(chat);
    }
    grow();
  }
  if (end === 'closed') node.note = 'The server was closed during this answer.';
  if (end === 'stop' && !node.content) node.note = 'The answer is empty.';
  if (end === 'length') {
    const isLimit = node.stats.tokens === request.max_tokens;
    node.note = isLimit ? `The answer was cut at ${node.stats.tokens} tokens, as the settings say.` : 'The answer was cut: the context of the model is full.';
  }
}

function fail(node, error) {
  node.error = error.message;
  node.detail = error.detail;
  if (error.kind !== 'refused') report(error);
}

function stop() {
  running.get(current.id)?.controller.abort();
  at('message').focus();
}

function send() {
  const content = at('message').value.trim();
  if (running.has(current.id) || (!content && !attached.length)) return;
  const files = attached;
  at('message').value = '';
  clearFiles();
  fit();
  ask(path(current).at(-1)?.id ?? '', content, files);
}

function changeSettings() {
  const chat = current;
  openSettings(chat.settings, (settings) => {
    chat.settings = settings;
    if (chats.has(chat.id)) keep(chat);
  });
}

/** Gives the message field the height of its text, where the browser's style sheets cannot. */
function fit() {
  if (CSS.supports('field-sizing', 'content')) return;
  at('message').style.height = 'auto';
  at('message').style.height = `${at('message').scrollHeight}px`;
}

// -- events ------------------------------------------------------------------------------------------------------------

const on = (id, event, run) => at(id).addEventListener(event, run);

on('composer', 'submit', (event) => {
  event.preventDefault();
  send();
});
on('message', 'keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
on('message', 'input', () => {
  fit();
  drawComposer();
});
on('stop', 'click', stop);
on('new', 'click', () => show(newChat(lastSettings())));
on('to-end', 'click', toEnd);
on('log', 'scroll', drawEnd);
on('open-settings', 'click', changeSettings);
on('title', 'change', () => {
  current.title = at('title').value.trim();
  keep(current);
  drawList();
});
on('title', 'keydown', ({ key }) => {
  if (key === 'Enter') at('title').blur();
});
on('export', 'click', () => download(`${titleOf(current).replace(/[^\p{L}\p{N}]+/gu, '-').slice(0, 40)}.json`, exported([current])));
on('export-all', 'click', () => download('ingot-chats.json', exported([...chats.values()])));
on('import', 'click', picked(at('pick-import'), importFiles));
on('attach', 'click', picked(at('pick-files'), (files) => attach(files, toast)));
on('files', 'change', drawComposer);
on('menu', 'click', () => {
  at('menu').setAttribute('aria-expanded', String(document.body.classList.toggle('side-open')));
  at('close-side').focus();
});
for (const id of ['shade', 'close-side']) {
  on(id, 'click', () => {
    document.body.classList.remove('side-open');
    at('menu').setAttribute('aria-expanded', 'false');
    at('menu').focus();
  });
}
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || document.querySelector('dialog[open]')) return;
  if (edited) act.cancel();
  else if (running.has(current.id)) stop();
  else if (document.body.classList.contains('side-open')) at('close-side').click();
});
on('message', 'paste', (event) => {
  if (!event.clipboardData.files.length) return;
  event.preventDefault();
  attach([...event.clipboardData.files], toast);
});
for (const event of ['dragover', 'dragleave', 'drop']) {
  on('main', event, (drag) => {
    if (!drag.dataTransfer.types.includes('Files')) return;
    drag.preventDefault();
    at('box').classList.toggle('dropping', event === 'dragover');
    if (event === 'drop') attach([...drag.dataTransfer.files], toast);
  });
}
addEventListener('storage', ({ key, newValue }) => { // another tab
  const id = idOf(key);
  if (id === null || running.has(id)) return;
  if (newValue === null) chats.delete(id);
  else load(key);
  if (id === current.id && chats.has(id) && !edited) show(chats.get(id));
  else drawList();
});
addEventListener('pagehide', () => {
  for (const [id, { node }] of running) {
    node.note = 'The page was closed during this answer.';
    if (chats.has(id)) keep(chats.get(id));
  }
});

const theme = localStorage.getItem(THEME) ?? 'auto';
at('theme').querySelector(`[value="${CSS.escape(theme)}"]`)?.click();
document.documentElement.dataset.theme = theme;
on('theme', 'change', ({ target }) => {
  document.documentElement.dataset.theme = target.value;
  localStorage.setItem(THEME, target.value);
});

storedKeys().forEach(load);
show(chats.get(location.hash.slice(1)) ?? current);
connect(draw);
