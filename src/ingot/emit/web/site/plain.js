// Any model: numbers in, numbers out.

import { element, enable, latest, open } from './page.js';

const SHOWN = 8; // elements of an output
const model = await open();
const [{ inputs, sizes }] = Object.values(model.programs);

const fields = Object.entries(inputs).map(([input, { dtype, shape }], i) => {
  const label = document.createElement('label');
  label.htmlFor = `input${i}`;
  label.textContent = `${input}: ${dtype} [${shape.join(', ')}]`;
  const field = document.createElement('textarea');
  field.id = label.htmlFor;
  field.value = '0';
  field.rows = 2;
  element('inputs').append(label, field);
  return [input, field, shape];
});

const note = document.createElement('p');
note.className = 'quiet';
note.textContent = 'Numbers, separated by spaces or commas; too few of them are repeated. Named dims are as small as can be.';
if (fields.length) element('inputs').append(note);

/** A tensor from the numbers in a field. */
function tensor(input, field, dims) {
  const shape = dims.map((dim) => sizes[dim]?.least ?? dim);
  const length = shape.reduce((product, dim) => product * dim, 1);
  const given = field.value.split(/[\s,]+/).filter((text) => text !== '').map(Number);
  if (!given.length || given.some(Number.isNaN)) throw new Error(`input ${input}: numbers are needed`);
  return { data: Array.from({ length }, (_, i) => given[i % given.length]), shape };
}

function cell(text) {
  const td = document.createElement('td');
  td.textContent = text;
  return td;
}

element('run').addEventListener(
  'click',
  latest(async () => {
    const given = Object.fromEntries(fields.map(([input, ...rest]) => [input, tensor(input, ...rest)]));
    const begin = performance.now();
    const outputs = await model.run(given);
    element('time').textContent = `${(performance.now() - begin).toFixed(1)} ms`;
    const rows = Object.entries(outputs).map(([output, { data, shape }]) => {
      const row = document.createElement('tr');
      const first = Array.from(data.slice(0, SHOWN), (value) => Number(value.toPrecision(6)));
      const more = data.length > SHOWN ? ', …' : '';
      row.append(cell(output), cell(`[${shape.join(', ')}]`), cell(first.join(', ') + more));
      return row;
    });
    element('outputs').replaceChildren(...rows);
  }),
);

enable();
