// A conversation as text, in the format of the model's chat template.

import { ModelError } from './model.js';

const ROLES = ['user', 'assistant'];
// White space that Python, and so a template, strips from a text.
const SPACE = '[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+';
const ENDS = new RegExp(`^${SPACE}|${SPACE}$`, 'g');

/**
 * The parts of a conversation's text, each with its author: "template" or a role. form: "chat" of the page's facts in
 * plan.json. messages: a system message, if the model has one, then the user's and the assistant's, alternating.
 */
export function written(form, messages) {
  const system = messages[0]?.role === 'system' ? messages[0] : null;
  const rest = system ? messages.slice(1) : messages;
  if (rest.length % 2 === 0) throw new ModelError('input', `${messages.length} messages, expected the user's as the last`);
  if (system && form.before_system === null) throw new ModelError('input', 'messages[0]: the model takes no system message');
  const by = (text) => ({ text, by: 'template' });
  const parts = system
    ? [by(form.before_system), changed(form, system, 'system'), by(form.after_system)]
    : [by(form.first)];
  rest.forEach((message, index) => {
    const next = index === rest.length - 1 ? form.last : index % 2 ? form.to_user : form.to_model;
    parts.push(changed(form, message, ROLES[index % 2]), by(next));
  });
  return parts;
}

/** A message as the template writes it. */
function changed(form, { role, content }, expected) {
  if (role !== expected || typeof content !== 'string') {
    throw new ModelError('input', `a message of ${role}: ${content}, expected a text of ${expected}`);
  }
  let text = content;
  if (role === 'assistant' && form.thoughts) {
    const rest = text.split('</think>').at(-1);
    text = form.thoughts > 1 && rest !== text ? rest.replace(/^\n+/, '') : rest;
  }
  return { text: form.trims.includes(role) ? text.replace(ENDS, '') : text, by: role };
}
