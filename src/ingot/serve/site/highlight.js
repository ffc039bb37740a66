// Colours of code: comments, strings, numbers and keywords. A language that is not listed has no colours.

import { create } from './dom.js';

const MAX_LENGTH = 50_000; // of code that is coloured
const COMMENTS = {
  '#': 'python py sh bash shell zsh console yaml yml toml ruby rb r perl make makefile dockerfile cmake elixir julia',
  '//': 'c h cpp c++ cc hpp cs csharp java js javascript jsx mjs ts typescript tsx go rust rs swift kotlin scala dart php wgsl glsl zig css scss json json5 jsonc',
  '--': 'sql lua haskell hs ada',
};
const SHARED = `and as async await break case catch class const continue def default del do elif else enum except export extends
  extern false finally fn for from func function global if impl import in interface is lambda let match mod mut new nil none
  nonlocal not null or pass private protected pub public raise return self static struct super switch this throw trait true
  try type typeof union use using var void while with yield int float double char bool long short unsigned signed string
  select where insert update delete create table join group order by into values set then fi done echo local end`;
const KEYWORDS = new Set(SHARED.split(/\s+/));
const STRINGS = String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?`;
const WORDS = String.raw`\b(?<number>0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b|(?<word>[A-Za-z_]\w*)`;
const LANGUAGES = {};
for (const [mark, names] of Object.entries(COMMENTS)) {
  const comment = mark === '//' ? String.raw`//.*|/\*[^]*?(?:\*/|$)` : `${mark}.*`;
  const form = new RegExp(`(?<comment>${comment})|(?<string>${STRINGS})|${WORDS}`, 'g');
  for (const name of names.split(' ')) LANGUAGES[name] = form;
}

/** Returns code as nodes. */
export function highlighted(code, language) {
  const form = Object.hasOwn(LANGUAGES, language) ? LANGUAGES[language] : null;
  if (!form || code.length > MAX_LENGTH) return [code];
  const nodes = [];
  let end = 0;
  for (const found of code.matchAll(form)) {
    const { comment, string, number, word } = found.groups;
    const isKeyword = word && KEYWORDS.has(word.toLowerCase());
    const kind = comment ? 'comment' : string ? 'string' : number ? 'number' : isKeyword ? 'keyword' : null;
    if (!kind) continue;
    nodes.push(code.slice(end, found.index), create('span', { class: kind }, found[0]));
    end = found.index + found[0].length;
  }
  return [...nodes, code.slice(end)];
}
