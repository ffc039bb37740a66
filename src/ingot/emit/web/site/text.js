// A page that continues a text with a language model.

import { answer, onSend } from './answer.js';
import { language } from './language.js';
import { element, enable, open } from './page.js';

const MOST = 256; // tokens of an answer
const model = await language(await open(), './');

function part(text, name) {
  const span = document.createElement('span');
  span.className = name;
  span.textContent = text;
  element('text').append(span);
  return span;
}

onSend(
  'prompt',
  ({ ctrlKey, metaKey }) => ctrlKey || metaKey,
  () => {
    const prompt = element('prompt').value;
    element('text').replaceChildren();
    part(prompt, 'given');
    const reply = part('', 'generated');
    answer(
      (options) => model.stream(prompt, { ...options, count: MOST }),
      (text) => reply.append(text),
    );
  },
);

enable();
