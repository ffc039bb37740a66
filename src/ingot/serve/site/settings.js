// The settings of a conversation, and their dialog.

import { SETTINGS } from './chats.js';
import { at } from './dom.js';

const LAST = 'ingot.settings';
const names = Object.keys(SETTINGS);
const isText = (name) => typeof SETTINGS[name] === 'string';

/** Returns the settings with which a new conversation begins: those that were chosen last. */
export function lastSettings() {
  const known = JSON.parse(localStorage.getItem(LAST) ?? '{}');
  return Object.fromEntries(names.map((name) => [name, known[name] ?? SETTINGS[name]]));
}

/** Returns the fields of a request for settings. Raises SyntaxError for a schema that is not JSON. */
export function fields({ system, schema, ...numbers }) {
  const given = Object.fromEntries(Object.entries(numbers).filter(([, value]) => value !== null));
  if (!schema.trim()) return given;
  return { ...given, response_format: { type: 'json_schema', json_schema: { name: 'answer', schema: JSON.parse(schema) } } };
}

/** Opens the dialog on settings; changed(settings) is called after each change. */
export function openSettings(settings, changed) {
  for (const name of names) at(`set-${name}`).value = settings[name] ?? '';
  at('settings-form').oninput = () => {
    const chosen = Object.fromEntries(names.map((name) => [name, value(name)]));
    localStorage.setItem(LAST, JSON.stringify(chosen));
    check(chosen);
    changed(chosen);
  };
  at('reset').onclick = () => {
    for (const name of names) at(`set-${name}`).value = SETTINGS[name] ?? '';
    at('settings-form').oninput();
  };
  check(settings);
  at('settings').showModal();
}

function value(name) {
  const field = at(`set-${name}`);
  if (isText(name)) return field.value;
  return Number.isFinite(field.valueAsNumber) ? field.valueAsNumber : null;
}

function check(settings) {
  try {
    fields(settings);
    at('schema-error').textContent = '';
  } catch (error) {
    at('schema-error').textContent = `Not JSON: ${error.message}`;
  }
}

at('settings').addEventListener('click', ({ target }) => {
  if (target === at('settings')) at('settings').close(); // the backdrop
});
