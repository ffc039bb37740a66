// Text to ids and back, by the tokenizer.json next to this file: byte-level BPE, or BERT's WordPiece. Control tokens
// that a text spells stay text.

import { ModelError } from './model.js';

/** The tokenizer of a folder: `{ encode(text), decoder() }`. */
export async function loadTokenizer(url) {
  const response = await fetch(url).catch((cause) => {
    throw new ModelError('load', `${url}: cannot be fetched: ${cause.message}`, { cause });
  });
  if (!response.ok) throw new ModelError('load', `${url}: cannot be fetched, got status ${response.status}`);
  const file = await response.json();
  return file.kind === 'bpe' ? new BytePairs(file) : new WordPieces(file);
}

/** The letters that represent bytes in a byte-level vocabulary; printable bytes represent themselves. */
function byteLetters() {
  const isPlain = (byte) => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  let others = 0;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPlain(byte) ? byte : 256 + others++));
}

/** Tokens that are matched before a text is split into words. */
class Added {
  constructor(ids) {
    this.ids = new Map(Object.entries(ids));
    const longest = [...this.ids.keys()].sort((a, b) => b.length - a.length);
    const spelled = (token) => Array.from(token, (each) => `\\u{${each.codePointAt(0).toString(16)}}`).join('');
    this.borders = longest.length ? new RegExp(`(${longest.map(spelled).join('|')})`, 'u') : null;
  }

  /** The ids of the added tokens in a text, and the texts between them. */
  cut(text) {
    return this.borders ? text.split(this.borders).map((part) => this.ids.get(part) ?? part) : [text];
  }
}

class BytePairs {
  constructor(file) {
    this.file = file;
    this.letters = byteLetters();
    this.bytes = new Map(this.letters.map((letter, byte) => [letter, byte]));
    this.ids = new Map(file.vocab.map((token, id) => [token, id]));
    this.added = new Added(file.added);
    const plain = Object.fromEntries(Object.entries(file.added).filter(([token]) => !file.known.includes(token)));
    this.by = {
      template: new Added({ ...file.added, ...file.control }),
      assistant: this.added,
      user: new Added(plain),
      system: new Added(plain),
    };
    this.merges = new Map(file.merges.map(([left, right, id], rank) => [`${left} ${right}`, { rank, id }]));
  }

  encode(text) {
    return [...this.file.prefix, ...this.#ids(this.added.cut(text))];
  }

  /**
   * The ids of a conversation's parts. Only the template's parts have control tokens and the tokens that it
   * contains.
   */
  encodeParts(parts) {
    const found = [];
    for (const part of parts.flatMap(({ text, by }) => this.by[by].cut(text))) {
      if (typeof part === 'string' && typeof found.at(-1) === 'string') found.push(found.pop() + part);
      else found.push(part);
    }
    return this.#ids(found);
  }

  #ids(parts) {
    return parts.flatMap((part) => (typeof part === 'string' ? this.#between(part) : part));
  }

  /** The ids of a text between added tokens. */
  #between(text) {
    const { compose, space, stages } = this.file;
    let whole = compose ? text.normalize('NFC') : text;
    if (space && whole && !whole.startsWith(' ')) whole = ` ${whole}`;
    let words = whole ? [whole] : [];
    for (const stage of stages) words = words.flatMap((word) => cut(stage, word));
    return words.flatMap((word) => this.#word(word));
  }

  /** A function that returns the text that each further id adds, in whole characters. */
  decoder() {
    const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
    return (id) => {
      const token = this.file.vocab[id] ?? '';
      const bytes = Array.from(token, (letter) => this.bytes.get(letter));
      const whole = bytes.includes(undefined) ? new TextEncoder().encode(token) : Uint8Array.from(bytes);
      return decoder.decode(whole, { stream: true });
    };
  }

  #word(word) {
    const spelled = Array.from(new TextEncoder().encode(word), (byte) => this.letters[byte]);
    if (this.file.whole && this.ids.has(spelled.join(''))) return [this.ids.get(spelled.join(''))];
    let ids = spelled.map((letter) => this.ids.get(letter)).filter((id) => id !== undefined);
    for (;;) {
      const merges = ids.slice(1).map((right, i) => this.merges.get(`${ids[i]} ${right}`));
      const best = merges.reduce((a, b) => (b && (!a || b.rank < a.rank) ? b : a), undefined);
      if (!best) return ids;
      // Merges of a merged pair have higher ranks, so that all occurrences of the first pair are merged at once.
      const joined = [];
      for (let at = 0; at < ids.length; at++) joined.push(merges[at] === best ? (at++, best.id) : ids[at]);
      ids = joined;
    }
  }
}

/** Splits a text at the matches of an expression's automaton. */
function cut(stage, text) {
  const characters = [...text];
  const classes = characters.map((character) => classOf(stage, character.codePointAt(0)));
  const words = [];
  let begin = 0;
  let at = 0;
  const add = (end) => {
    if (begin < end) words.push(characters.slice(begin, end).join(''));
    begin = end;
  };
  while (at < characters.length) {
    const end = matched(stage, classes, at);
    if (end === at) {
      at++;
      continue;
    }
    add(at);
    add(end);
    at = end;
  }
  add(at);
  return words;
}

/** The end of a match at a position; the position itself for no match. */
function matched({ width, transitions }, classes, begin) {
  let end = begin;
  let state = 1;
  for (let at = begin; state; at++) {
    const next = transitions[state * width + (classes[at] ?? width - 1)];
    if (next & 1) end = at;
    state = at < classes.length ? next >> 1 : 0;
  }
  return end;
}

function classOf({ starts, classes }, code) {
  let low = 0;
  let high = starts.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (starts[middle] <= code) low = middle;
    else high = middle;
  }
  return classes[low];
}

const CONTROL = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\ufffd]/u;
const SPACE = /[\s\u0085]/u;
const PUNCTUATION = /[\p{P}$+<=>^`|~]/u;
const CHINESE =
  /[\u{3400}-\u{4dbf}\u{4e00}-\u{9fff}\u{f900}-\u{faff}\u{20000}-\u{2a6df}\u{2a700}-\u{2ceaf}\u{2f800}-\u{2fa1f}]/gu;

class WordPieces {
  constructor(file) {
    this.file = file;
    this.ids = new Map(file.vocab.map((token, id) => [token, id]));
  }

  encode(text) {
    const words = [];
    let word = '';
    const end = () => {
      if (word) words.push(word);
      word = '';
    };
    for (const character of this.#normal(text)) {
      if (SPACE.test(character)) end();
      else if (PUNCTUATION.test(character)) {
        end();
        words.push(character);
      } else word += character;
    }
    end();
    return [...this.file.prefix, ...words.flatMap((each) => this.#pieces(each)), ...this.file.suffix];
  }

  #normal(text) {
    const { clean, chinese, strip, lowercase } = this.file;
    let normal = text;
    if (clean) {
      const cleaned = (character) => (SPACE.test(character) ? ' ' : CONTROL.test(character) ? '' : character);
      normal = Array.from(normal, cleaned).join('');
    }
    if (chinese) normal = normal.replace(CHINESE, ' $& ');
    if (strip) normal = normal.normalize('NFD').replace(/\p{Mn}/gu, '');
    return lowercase ? Array.from(normal, (character) => character.toLowerCase()).join('') : normal;
  }

  /** The longest pieces one after another, or the unknown token. */
  #pieces(word) {
    const { unknown, continuing, longest } = this.file;
    const characters = [...word];
    if (characters.length > longest) return [unknown];
    const ids = [];
    for (let begin = 0, end; begin < characters.length; begin = end) {
      const piece = () => (begin ? continuing : '') + characters.slice(begin, end).join('');
      end = characters.length;
      while (end > begin && !this.ids.has(piece())) end--;
      if (end === begin) return [unknown];
      ids.push(this.ids.get(piece()));
    }
    return ids;
  }
}
