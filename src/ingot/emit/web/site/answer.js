// Shared by the pages of language models: an answer that is streamed, its sampling options, and stopping it.

import { element, settle, tell } from './page.js';

let running = null;

function settings() {
  const seed = element('seed').value.trim();
  if (!/^\d*$/.test(seed)) throw new Error(`seed: got ${seed}, expected digits, or nothing`);
  return { temperature: Number(element('temperature').value), ...(seed && { seed: BigInt(seed) }) };
}

/** Passes each text of `stream(options)` to `add`. Returns whether there was no error; an error is shown. */
export async function answer(stream, add) {
  const { signal } = (running = new AbortController());
  element('go').disabled = true;
  element('stop').disabled = false;
  settle();
  const begin = performance.now();
  let count = 0;
  try {
    for await (const text of stream({ ...settings(), signal })) {
      add(text);
      count++;
      const seconds = (performance.now() - begin) / 1000;
      element('speed').textContent = `${count} tokens, ${(count / seconds).toFixed(1)} a second`;
    }
    return true;
  } catch (error) {
    tell(error);
    return false;
  } finally {
    running = null;
    element('go').disabled = false;
    element('stop').disabled = true;
  }
}

/** Calls `begin` when the form is sent, unless an answer is in progress; `isKey` tests for the key that sends it. */
export function onSend(field, isKey, begin) {
  element('form').addEventListener('submit', (event) => {
    event.preventDefault();
    if (!running) begin();
  });
  element(field).addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.isComposing || !isKey(event)) return;
    event.preventDefault();
    element('form').requestSubmit();
  });
}

element('stop').addEventListener('click', () => running?.abort());
element('temperature').addEventListener('input', ({ target }) => {
  element('chosen').textContent = target.value;
});
