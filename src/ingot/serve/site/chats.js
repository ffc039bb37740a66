// Conversations: trees of messages, of which one path is shown, and how the browser keeps them.

const PREFIX = 'ingot.chat.';
const FORMAT = 'ingot-chats';
const ROLES = ['user', 'assistant'];
const MAX_TITLE = 60; // characters
const ID = /^[0-9a-f]{24}$/;
const TEXTS = ['content', 'reasoning', 'error', 'detail', 'note', 'model'];

/** The settings of an answer that a conversation has; null: the server's default. */
export const SETTINGS = { system: '', temperature: null, top_p: null, max_tokens: null, seed: null, schema: '' };

/** What is wrong with stored or imported conversations, in plain words. */
export class ChatError extends Error {}

export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, '0')).join('');

export function newChat(settings) {
  return { id: newId(), title: '', changed: Date.now(), settings: { ...SETTINGS, ...settings }, nodes: {}, chosen: {} };
}

/** Adds a version of a message after `parent` ('' for the first) and shows it. Returns the message. */
export function add(chat, parent, fields) {
  const node = { id: newId(), parent, ...fields };
  chat.nodes[node.id] = node;
  chat.chosen[parent] = node.id;
  chat.changed = Date.now();
  return node;
}

/** Removes a message and all that follow it. */
export function remove(chat, node) {
  for (const each of versions(chat, node.id)) remove(chat, each);
  delete chat.nodes[node.id];
  delete chat.chosen[node.id];
  if (chat.chosen[node.parent] === node.id) delete chat.chosen[node.parent];
}

/** Returns the versions of the message after `parent`, in the order of their creation. */
export const versions = (chat, parent) => Object.values(chat.nodes).filter((node) => node.parent === parent);

/** Returns the messages that are shown. */
export function path(chat) {
  const children = Map.groupBy(Object.values(chat.nodes), ({ parent }) => parent);
  const found = [];
  for (let parent = ''; children.has(parent);) {
    const node = chat.nodes[chat.chosen[parent]] ?? children.get(parent).at(-1);
    found.push(node);
    parent = node.id;
  }
  return found;
}

/** Returns the messages before a message, the first one first. */
export function before(chat, node) {
  const found = [];
  for (let id = node.parent; id; id = chat.nodes[id].parent) found.unshift(chat.nodes[id]);
  return found;
}

/** Returns messages as the server reads them. A message that the server refused is left out, with its empty answer. */
export function conversation(system, nodes) {
  const found = system.trim() ? [{ role: 'system', content: system }] : [];
  nodes.forEach((node, index) => {
    const answer = nodes[index + 1];
    const isRefused = answer?.role === 'assistant' && answer.error && !answer.content;
    if (isRefused || (node.role === 'assistant' && !node.content)) return;
    const last = found.at(-1);
    const content = written(node);
    // Templates expect alternating roles; an answer that was stopped before its first token has no text.
    if (last?.role === node.role) last.content += `\n\n${content}`;
    else found.push({ role: node.role, content });
  });
  return found;
}

/** Returns the text of a user's message with its files, as the model reads it. */
export function written({ content, files = [] }) {
  const parts = files.map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((marks) => marks.length));
    const fence = '`'.repeat(longest + 1);
    return `${name}:\n${fence}\n${text}\n${fence}`;
  });
  return [...parts, content].filter(Boolean).join('\n\n');
}

export function titleOf(chat) {
  if (chat.title) return chat.title;
  const first = path(chat)[0];
  const line = (first?.content || first?.files?.[0]?.name || '').trim().split('\n')[0];
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE)}…` : line || 'New conversation';
}

// -- in the browser ----------------------------------------------------------------------------------------------------

/** Stores a conversation. Raises ChatError when the browser refuses. */
export function save(chat) {
  try {
    localStorage.setItem(PREFIX + chat.id, JSON.stringify(chat));
  } catch (error) {
    throw new ChatError(`The browser cannot store this conversation (${error.name}). Export or delete old conversations.`);
  }
}

export const forget = (chat) => localStorage.removeItem(PREFIX + chat.id);

/** Returns the stored conversation of a key of localStorage; null for other keys. Raises ChatError. */
export function stored(key) {
  const text = key?.startsWith(PREFIX) ? localStorage.getItem(key) : null;
  return text === null ? null : checked(parsedJson(text));
}

export const storedKeys = () => Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));

export const idOf = (key) => (key?.startsWith(PREFIX) ? key.slice(PREFIX.length) : null);

// -- as files ----------------------------------------------------------------------------------------------------------

/** Returns conversations as the text of a file. */
export const exported = (chats) => JSON.stringify({ format: FORMAT, chats }, null, 1);

/** Returns the conversations of a file's text, with new ids. Raises ChatError. */
export function imported(text) {
  const file = parsedJson(text);
  if (file?.format !== FORMAT || !Array.isArray(file.chats)) throw new ChatError(`The file has no conversations: its "format" is not "${FORMAT}".`);
  return file.chats.map((chat) => ({ ...checked(chat), id: newId() }));
}

function parsedJson(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ChatError(`The file is not JSON: ${error.message}.`);
  }
}

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
const textOr = (value, other) => (typeof value === 'string' ? value : other);
const finite = (value) => (Number.isFinite(value) ? value : null);

/** Returns a conversation with the known fields alone. Raises ChatError for wrong ones. */
function checked(chat) {
  const expect = (isRight, words) => {
    if (!isRight) throw new ChatError(`A conversation is damaged: ${words}.`);
  };
  expect(isObject(chat) && ID.test(chat.id), 'it has no id');
  expect(isObject(chat.nodes), 'it has no messages');
  const nodes = {};
  for (const [id, node] of Object.entries(chat.nodes)) {
    expect(isObject(node) && ID.test(id) && node.id === id && ROLES.includes(node.role), `message ${id} has no role`);
    // A message is after its parent in the file, so that no message is its own ancestor.
    expect(node.parent === '' || Object.hasOwn(nodes, node.parent), `message ${id} follows none`);
    nodes[id] = checkedNode(node);
  }
  const settings = isObject(chat.settings) ? chat.settings : {};
  const entries = Object.entries(SETTINGS).map(([name, usual]) => [name, typeof usual === 'string' ? textOr(settings[name], usual) : finite(settings[name])]);
  const chosen = isObject(chat.chosen) ? Object.entries(chat.chosen).filter(([parent, id]) => nodes[id]?.parent === parent) : [];
  return {
    id: chat.id, title: textOr(chat.title, ''), changed: finite(chat.changed) ?? Date.now(),
    settings: Object.fromEntries(entries), nodes, chosen: Object.fromEntries(chosen),
  };
}

function checkedNode(node) {
  const texts = TEXTS.filter((name) => typeof node[name] === 'string').map((name) => [name, node[name]]);
  const files = Array.isArray(node.files) ? node.files.filter((file) => typeof file?.name === 'string' && typeof file.text === 'string') : [];
  const stats = isObject(node.stats) ? Object.entries(node.stats).filter(([, value]) => Number.isFinite(value)) : null;
  return {
    id: node.id, parent: node.parent, role: node.role, content: '', ...Object.fromEntries(texts),
    ...(files.length && { files: files.map(({ name, text }) => ({ name, text })) }),
    ...(stats && { stats: Object.fromEntries(stats) }), ...(node.isJson === true && { isJson: true }),
  };
}
