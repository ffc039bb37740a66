// A page that continues a text with a language model.

import { answer, onSend } from './answer.js';
import { language } from './language.js';
import { element, enable, open } from './page.js';

const MOST = 256; // tokens of an answer
const model = await language(await open(), './');

function part(text, name) {
  const made = document.createElement('span');
  made.className = name;
  made.textContent = text;
  element('text').append(made);
  return made;
}

onSend(
  'prompt',
  ({ ctrlKey, metaKey }) => ctrlKey || metaKey,
  () => {
    const prompt = element('prompt').value;
    element('text').replaceChildren();
    part(prompt, 'given');
    const made = part('', 'made');
    answer(
      (options) => model.stream(prompt, { ...options, count: MOST }),
      (text) => made.append(text),
    );
  },
);

enable();
