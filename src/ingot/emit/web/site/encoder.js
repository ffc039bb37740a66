// Two sentences, and their similarity by an encoder.

import { element, enable, latest, open, show } from './page.js';
import { loadTokenizer } from './tokenizer.js';

const WAIT = 250; // milliseconds without a key before the model runs

const [model, tokenizer] = await Promise.all([open(), loadTokenizer('./tokenizer.json')]);
const fields = [element('first'), element('second')];
const { inputs, sizes } = model.programs.encode;
const known = new Map(); // embeddings by their text

/** The mean of the final states of a text's tokens, normalised to length 1. */
async function direction(text) {
  const ids = tokenizer.encode(text);
  if (ids.length > sizes.length.most) {
    throw new Error(`a text is too long: ${ids.length} tokens, expected at most ${sizes.length.most}`);
  }
  const given = { input_ids: ids, attention_mask: ids.map(() => 1), token_type_ids: ids.map(() => 0) };
  const shaped = ([name]) => [name, { data: given[name], shape: [1, ids.length] }];
  const { data, shape } = (await model.run(Object.fromEntries(Object.entries(inputs).map(shaped)))).last_hidden_state;
  const width = shape[2];
  const sums = new Float64Array(width);
  ids.forEach((_, row) => sums.forEach((_, i) => (sums[i] += data[row * width + i])));
  const size = Math.hypot(...sums);
  return sums.map((sum) => sum / size);
}

async function directionOf(text) {
  if (!known.has(text)) known.set(text, await direction(text));
  return known.get(text);
}

const compare = latest(async () => {
  const texts = fields.map((field) => field.value.trim());
  if (texts.some((text) => !text)) {
    element('answer').textContent = '–';
    element('bar').style.width = 0;
    return;
  }
  show('Comparing');
  const [a, b] = [await directionOf(texts[0]), await directionOf(texts[1])];
  const alike = a.reduce((sum, value, i) => sum + value * b[i], 0);
  element('answer').textContent = alike.toFixed(2);
  element('bar').style.width = `${100 * Math.max(0, alike)}%`;
});

let waiting;
for (const field of fields) {
  field.addEventListener('input', () => {
    clearTimeout(waiting);
    waiting = setTimeout(compare, WAIT);
  });
}

enable();
compare();
