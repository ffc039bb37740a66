// A conversation with a language model, in the form of its chat template.

import { answer, onSend } from './answer.js';
import { language } from './language.js';
import { element, enable, open } from './page.js';

const NAMES = { user: 'You', assistant: 'Model' };
const NEAR = 40; // pixels from the end within which new text is scrolled to
const model = await language(await open(), './');
const talk = element('talk');
let messages = [];

/** Shows a message; its text may grow. */
function shown(role, text) {
  const [message, name, paragraph] = ['article', 'h2', 'p'].map((tag) => document.createElement(tag));
  message.className = role;
  name.textContent = NAMES[role];
  paragraph.append(text);
  message.append(name, paragraph);
  talk.append(message);
  return [message, paragraph];
}

function follow(work) {
  const isAtEnd = talk.scrollHeight - talk.scrollTop - talk.clientHeight < NEAR;
  work();
  if (isAtEnd) talk.scrollTop = talk.scrollHeight;
}

async function send() {
  const field = element('message');
  const asked = { role: 'user', content: field.value };
  if (!asked.content.trim()) return;
  const system = element('system').value;
  const first = model.form.before_system !== null && system ? [{ role: 'system', content: system }] : [];
  const [question] = shown('user', asked.content);
  const [reply, paragraph] = shown('assistant', '');
  talk.scrollTop = talk.scrollHeight;
  field.value = '';
  element('again').disabled = true;
  const isWell = await answer(
    (options) => model.chat([...first, ...messages, asked], options),
    (text) => follow(() => paragraph.append(text)),
  );
  element('again').disabled = false;
  if (isWell) {
    messages.push(asked, { role: 'assistant', content: paragraph.textContent });
  } else {
    question.remove();
    reply.remove();
    field.value = asked.content;
  }
  field.focus();
}

onSend('message', ({ shiftKey }) => !shiftKey, send);
element('again').addEventListener('click', () => {
  messages = [];
  talk.replaceChildren();
  element('speed').textContent = '';
  element('message').focus();
});

element('system-field').hidden = model.form.before_system === null;
enable();
element('message').focus();
