// Markdown as DOM nodes. Text of a model is never read as HTML: a page has the elements that are created here, and text.

import { copy, create, icon } from './dom.js';
import { highlighted } from './highlight.js';

const MAX_DEPTH = 8; // of quotes, lists and marks inside each other
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}>[ \t]?(.*)$/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:[ \t]+(.*))?$/;
const TASK = /^\[([ xX])\][ \t]+/;
const DASHES = /^:?-+:?$/;

/** Returns the blocks of a text: {source, draw}. Equal sources are drawn as equal nodes. */
export function blocks(text) {
  return parsed(text.replaceAll('\r\n', '\n').split('\n'), 0);
}

function parsed(lines, depth) {
  const found = [];
  for (let line = 0; line < lines.length;) {
    if (!lines[line].trim()) {
      line++;
      continue;
    }
    const { end, draw } = special(lines, line, depth) ?? paragraph(lines, line, depth);
    found.push({ source: lines.slice(line, end).join('\n'), draw });
    line = end;
  }
  return found;
}

function special(lines, begin, depth) {
  for (const read of depth < MAX_DEPTH ? [fence, heading, rule, table, quote, list] : [fence]) {
    const block = read(lines, begin, depth);
    if (block) return block;
  }
  return null;
}

const drawn = (lines, depth) => parsed(lines, depth).map(({ draw }) => draw());

function paragraph(lines, begin, depth) {
  let end = begin + 1;
  while (end < lines.length && lines[end].trim() && !special(lines, end, depth)) end++;
  return { end, draw: () => create('p', {}, ...inline(lines.slice(begin, end).join('\n'))) };
}

function fence(lines, begin) {
  const opening = FENCE.exec(lines[begin]);
  if (!opening) return null;
  const [, marks, words] = opening;
  const isEnd = (line) => line.trim().length >= marks.length && line.trim() === marks[0].repeat(line.trim().length);
  let last = begin + 1;
  while (last < lines.length && !isEnd(lines[last])) last++;
  const code = lines.slice(begin + 1, last).join('\n');
  return { end: Math.min(last + 1, lines.length), draw: () => codeBlock(code, words.trim().split(/\s+/)[0]) };
}

/** Draws code with its language and a button that copies it. */
export function codeBlock(code, language) {
  const button = create('button', { type: 'button', class: 'copy', click: () => copy(code, button) }, icon('copy'), create('span', {}, 'Copy'));
  const name = create('span', {}, language || 'text');
  return create('figure', { class: 'code' },
    create('figcaption', {}, name, button),
    create('pre', { tabindex: '0', 'aria-label': `Code, ${language || 'text'}` }, create('code', {}, ...highlighted(code, language.toLowerCase()))));
}

function heading(lines, begin) {
  const found = HEADING.exec(lines[begin]);
  if (!found) return null;
  const level = Math.min(found[1].length + 2, 6); // the page has h1, a message h2
  return { end: begin + 1, draw: () => create(`h${level}`, {}, ...inline(found[2].trim().replace(/\s#+$/, ''))) };
}

function rule(lines, begin) {
  return RULE.test(lines[begin]) ? { end: begin + 1, draw: () => create('hr') } : null;
}

function quote(lines, begin, depth) {
  let end = begin;
  const inner = [];
  for (let found; end < lines.length && (found = QUOTE.exec(lines[end])); end++) inner.push(found[1]);
  return inner.length ? { end, draw: () => create('blockquote', {}, ...drawn(inner, depth + 1)) } : null;
}

function table(lines, begin) {
  if (!lines[begin].includes('|') || begin + 1 >= lines.length) return null;
  const [head, dashes] = [cells(lines[begin]), cells(lines[begin + 1])];
  if (head.length !== dashes.length || !dashes.every((cell) => DASHES.test(cell))) return null;
  let end = begin + 2;
  while (end < lines.length && lines[end].includes('|')) end++;
  const sides = dashes.map((cell) => (cell.endsWith(':') ? (cell.startsWith(':') ? 'center' : 'right') : null));
  const row = (tag, texts) => create('tr', {}, ...head.map((_, column) => create(tag, { class: sides[column] }, ...inline(texts[column] ?? ''))));
  const body = lines.slice(begin + 2, end).map(cells);
  return {
    end,
    draw: () => create('div', { class: 'table', tabindex: '0' },
      create('table', {}, create('thead', {}, row('th', head)), create('tbody', {}, ...body.map((texts) => row('td', texts))))),
  };
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, '').replace(/\|$/, '');
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll('\\|', '|'));
}

const columns = (line) => [.../^[ \t]*/.exec(line)[0]].reduce((sum, character) => sum + (character === '\t' ? 4 : 1), 0);

/** Removes at most so many columns of white space from the beginning of a line. */
function outdented(line, most) {
  let count = 0;
  let begin = 0;
  for (; begin < line.length && count < most && ' \t'.includes(line[begin]); begin++) count += line[begin] === '\t' ? 4 : 1;
  return line.slice(begin);
}

const isOrdered = (item) => /\d/.test(item[2]);

function list(lines, begin, depth) {
  const first = ITEM.exec(lines[begin]);
  if (!first || columns(lines[begin]) > 3) return null;
  const items = [];
  let end = begin;
  for (let item = first; item && isOrdered(item) === isOrdered(first) && !RULE.test(lines[end]);) {
    const [inner, after] = itemLines(lines, end, item);
    items.push(inner);
    end = after;
    const next = afterBlanks(lines, end);
    item = next < lines.length ? ITEM.exec(lines[next]) : null;
    if (item) end = next;
  }
  const isTight = !items.some((inner) => inner.slice(0, -1).includes(''));
  const start = isOrdered(first) ? String(parseInt(first[2], 10)) : null;
  return { end, draw: () => create(start === null ? 'ul' : 'ol', { start, class: isTight ? 'tight' : null }, ...items.map((inner) => drawnItem(inner, depth))) };
}

function drawnItem(inner, depth) {
  const task = TASK.exec(inner[0]);
  if (!task) return create('li', {}, ...drawn(inner, depth + 1));
  const box = create('input', { type: 'checkbox', disabled: true, checked: task[1] !== ' ', 'aria-label': task[1] === ' ' ? 'open' : 'done' });
  return create('li', { class: 'task' }, box, ...drawn([inner[0].slice(task[0].length), ...inner.slice(1)], depth + 1));
}

function afterBlanks(lines, line) {
  while (line < lines.length && !lines[line].trim()) line++;
  return line;
}

/** Returns the lines of a list's item without their indentation, and the number of the line after it. */
function itemLines(lines, begin, item) {
  const outer = columns(lines[begin]);
  const width = outer + item[2].length + 1;
  const inner = [item[3] ?? ''];
  let line = begin + 1;
  while (line < lines.length) {
    const next = afterBlanks(lines, line);
    const isInside = next < lines.length && columns(lines[next]) > outer;
    const isLazy = next === line && !ITEM.test(lines[line]) && !special(lines, line, MAX_DEPTH) && !HEADING.test(lines[line]) && !RULE.test(lines[line]);
    if (!isInside && !isLazy) break;
    for (; line < next; line++) inner.push('');
    inner.push(outdented(lines[line++], width));
  }
  return [inner, line];
}

// -- marks inside a line -----------------------------------------------------------------------------------------------

const MARK = /\\|`+|\*{1,3}|_{1,3}|~~|!?\[|<|https?:\/\//g;
const ESCAPED = /[!-/:-@[-`{-~]/;
const LINK = /(!?)\[([^[\]]{0,1000})\]\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"\n]*")?\s*\)/y;
const BRACKETED = /<(https?:\/\/[^\s<>]+)>/y;
const ADDRESS = /https?:\/\/[^\s<>"'`]+/y;
const TAGS = { '*': ['em'], _: ['em'], '**': ['strong'], __: ['strong'], '***': ['strong', 'em'], ___: ['strong', 'em'], '~~': ['del'] };

/** Returns the nodes of a paragraph's text. */
export function inline(text, depth = 0) {
  const nodes = [];
  const hopeless = new Set(); // marks that nothing closes from here on
  let done = 0;
  let begin = 0;
  MARK.lastIndex = 0;
  for (let mark; (mark = next(MARK, text, begin));) {
    const found = element(text, mark.index, mark[0], hopeless, depth);
    if (found) {
      nodes.push(text.slice(done, mark.index), ...found.nodes);
      done = found.end;
    }
    begin = found ? found.end : mark.index + mark[0].length;
  }
  return [...nodes, text.slice(done)].filter((node) => node !== '');
}

function next(form, text, begin) {
  form.lastIndex = begin;
  return form.exec(text);
}

/** Returns the nodes of what begins with a mark, and its end; null where the mark is plain text. */
function element(text, begin, mark, hopeless, depth) {
  const after = begin + mark.length;
  if (mark === '\\') return ESCAPED.test(text[after] ?? '') ? { nodes: [text[after]], end: after + 1 } : null;
  if (mark[0] === '`') return codeSpan(text, begin, mark, hopeless);
  if (mark === '[' || mark === '![') {
    const found = next(LINK, text, begin);
    return found && link(found[3], inline(found[2] || found[3], MAX_DEPTH), begin + found[0].length);
  }
  if (mark === '<') {
    const found = next(BRACKETED, text, begin);
    return found && link(found[1], [found[1]], begin + found[0].length);
  }
  if (mark[0] === 'h') {
    const address = trimmed(next(ADDRESS, text, begin)?.[0] ?? '');
    return link(address, [address], begin + address.length);
  }
  return depth < MAX_DEPTH ? emphasis(text, begin, mark, hopeless, depth) : null;
}

/** Returns an address without the punctuation of the sentence that it ends. */
function trimmed(address) {
  let end = address.length;
  const isOpen = () => address.slice(0, end).split('(').length < address.slice(0, end).split(')').length;
  while (end && (/[.,;:!?*_~]/.test(address[end - 1]) || (address[end - 1] === ')' && isOpen()))) end--;
  return address.slice(0, end);
}

/** Only http and https are links: no other address may be opened from an answer. */
function link(address, children, end) {
  if (!URL.canParse(address) || !['http:', 'https:'].includes(new URL(address).protocol)) return null;
  return { nodes: [create('a', { href: address, target: '_blank', rel: 'noopener noreferrer nofollow' }, ...children)], end };
}

function codeSpan(text, begin, mark, hopeless) {
  if (hopeless.has(mark)) return null;
  const closing = new RegExp(`(?<!\`)${mark}(?!\`)`, 'g');
  const found = next(closing, text, begin + mark.length);
  if (!found) {
    hopeless.add(mark);
    return null;
  }
  const code = text.slice(begin + mark.length, found.index).replaceAll('\n', ' ');
  const isPadded = code.startsWith(' ') && code.endsWith(' ') && code.trim();
  return { nodes: [create('code', {}, isPadded ? code.slice(1, -1) : code)], end: found.index + mark.length };
}

function emphasis(text, begin, mark, hopeless, depth) {
  const after = begin + mark.length;
  const isWordMark = mark[0] === '_';
  if (hopeless.has(mark) || !/\S/.test(text[after] ?? '') || (isWordMark && /[\p{L}\p{N}_]/u.test(text[begin - 1] ?? ''))) return null;
  let end = after + 1;
  for (; (end = text.indexOf(mark, end)) >= 0; end += mark.length) {
    const isAlone = text[end - 1] !== mark[0] && (text[end + mark.length] !== mark[0] || mark.length > 1);
    const isInWord = isWordMark && /[\p{L}\p{N}_]/u.test(text[end + mark.length] ?? '');
    if (isAlone && !isInWord && /\S/.test(text[end - 1])) break;
  }
  if (end < 0) {
    hopeless.add(mark);
    return null;
  }
  if (mark === '__' && /^\w+$/.test(text.slice(after, end))) return null; // a name of Python, such as __init__
  const inner = inline(text.slice(after, end), depth + 1);
  const nodes = TAGS[mark].reduceRight((children, tag) => [create(tag, {}, ...children)], inner);
  return { nodes, end: end + mark.length };
}
