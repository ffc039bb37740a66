// Text files: those attached to the next message, and those that are read and written whole.

import { at, create, icon, iconButton } from './dom.js';

const MAX_BYTES = 1 << 20; // of an attached file

/** The files of the next message: {name, text}. */
export let attached = [];

/** Returns the text of a file. Raises TypeError unless it is UTF-8 without zeros. */
async function textOf(file) {
  const text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
  if (text.includes('\0')) throw new TypeError('zeros');
  return text;
}

/** Attaches files; complain(words) is called for each that is refused. */
export async function attach(files, complain) {
  for (const file of files) {
    if (file.size > MAX_BYTES) {
      complain(`${file.name} is too large: at most 1 MiB is sent.`);
      continue;
    }
    try {
      attached.push({ name: file.name, text: await textOf(file) });
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      complain(`${file.name} is not a text file.`);
    }
  }
  drawFiles();
}

export function clearFiles() {
  attached = [];
  drawFiles();
}

function drawFiles() {
  at('files').replaceChildren(...attached.map((file) => create('li', {}, icon('file'), create('span', {}, file.name),
    iconButton('close', `Remove ${file.name}`, () => {
      attached = attached.filter((each) => each !== file);
      drawFiles();
      at('message').focus();
    }))));
  at('files').dispatchEvent(new Event('change'));
}

/** Offers a text as a file. */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  create('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Returns the files that the user picks with a field, by `take(files)`. */
export function picked(field, take) {
  field.addEventListener('change', () => {
    take([...field.files]);
    field.value = '';
  });
  return () => field.click();
}
