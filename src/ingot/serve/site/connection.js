// The connection to the server: its models, the key, and notices while it does not answer.

import { at, create } from './dom.js';
import { isAlive, models, ServerError } from './server.js';

const KEY = 'ingot.key';
const MODEL = 'ingot.model';
const WAIT = 2000; // milliseconds until a server that did not answer is asked again

/** The key, and the language models as /v1/models lists them. */
export const server = { key: sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? '', models: [] };

let timer = null;
let notify = () => {};

/** Reads the models. changed: called after each change of them. */
export async function connect(changed) {
  notify = changed ?? notify;
  try {
    server.models = (await models(server.key)).filter(({ kind }) => kind === undefined || kind === 'language');
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    report(error);
    return;
  }
  banner(server.models.length ? '' : 'The server has no language model.');
  drawModels();
  notify();
}

/** Shows an error that concerns the whole server: it does not answer, or expects a key. */
export function report(error) {
  if (error.kind === 'key') askKey(server.key ? 'The server refuses this key.' : '');
  else banner(`${error.message} ${error.detail}`);
  if (error.kind === 'gone') timer ??= setTimeout(look, WAIT);
}

async function look() {
  timer = null;
  if (await isAlive()) await connect();
  else timer = setTimeout(look, WAIT);
}

function banner(text, ...buttons) {
  at('banner').hidden = !text;
  at('banner').replaceChildren(create('p', {}, text), ...buttons);
}

function drawModels() {
  const field = at('model');
  const names = server.models.map(({ id }) => id);
  const wanted = [field.value, localStorage.getItem(MODEL)].find((name) => names.includes(name)) ?? names[0];
  field.replaceChildren(...names.map((name) => create('option', { value: name }, name)));
  field.value = wanted ?? '';
  field.disabled = names.length < 2;
  field.hidden = !names.length;
}

/** The chosen model, as /v1/models describes it; undefined before the server has answered. */
export const model = () => server.models.find(({ id }) => id === at('model').value);

// -- the key -----------------------------------------------------------------------------------------------------------

function askKey(wrong) {
  at('key-error').textContent = wrong;
  at('key-field').value = server.key;
  at('key-remember').checked = localStorage.getItem(KEY) !== null;
  if (!at('key').open) at('key').showModal();
  at('key-field').select();
}

function decline() {
  const button = create('button', { type: 'button', class: 'quiet-button', click: () => askKey('') }, 'Enter the key');
  if (!server.models.length) banner('The server expects a key.', button);
}

at('key-form').addEventListener('submit', () => {
  server.key = at('key-field').value.trim();
  sessionStorage.setItem(KEY, server.key);
  if (at('key-remember').checked) localStorage.setItem(KEY, server.key);
  else localStorage.removeItem(KEY);
  connect();
});
at('key-cancel').addEventListener('click', () => {
  at('key').close();
  decline();
});
at('key').addEventListener('cancel', decline); // Esc
at('model').addEventListener('change', () => {
  localStorage.setItem(MODEL, at('model').value);
  notify();
});
