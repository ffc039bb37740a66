// A text is begun, and a language model goes on with it.

import { language } from './language.js';
import { element, enable, open, tell } from './page.js';

const MOST = 256; // tokens of an answer
const model = await language(await open(), './');
let running = null;

function part(text, name) {
  const made = document.createElement('span');
  made.className = name;
  made.textContent = text;
  element('text').append(made);
  return made;
}

async function answer() {
  const prompt = element('prompt').value;
  const { signal } = (running = new AbortController());
  element('go').disabled = true;
  element('stop').disabled = false;
  element('text').replaceChildren();
  part(prompt, 'given');
  const made = part('', 'made');
  const begin = performance.now();
  let count = 0;
  try {
    const temperature = Number(element('temperature').value);
    for await (const text of model.stream(prompt, { temperature, count: MOST, signal })) {
      made.append(text);
      count++;
      const seconds = (performance.now() - begin) / 1000;
      element('speed').textContent = `${count} tokens, ${(count / seconds).toFixed(1)} a second`;
    }
  } catch (error) {
    tell(error);
  } finally {
    running = null;
    element('go').disabled = false;
    element('stop').disabled = true;
  }
}

element('form').addEventListener('submit', (event) => {
  event.preventDefault();
  if (!running) answer();
});
element('prompt').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) element('form').requestSubmit();
});
element('stop').addEventListener('click', () => running?.abort());
element('temperature').addEventListener('input', ({ target }) => {
  element('chosen').textContent = target.value;
});

enable();
