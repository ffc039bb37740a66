// Requests to the server that sent this page, and its errors in plain words.

/** An error of the server. message: plain words. detail: the server's own. kind: "key", "gone" or "refused". */
export class ServerError extends Error {
  constructor(kind, message, detail = '') {
    super(message);
    this.kind = kind;
    this.detail = detail;
  }
}

const address = (path) => new URL(path, document.baseURI);

/** Sends a request. Raises ServerError unless the server accepts it. */
async function request(path, key, options = {}) {
  const headers = { ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(address(path), { ...options, headers });
  } catch (error) {
    throw options.signal?.aborted ? error : gone();
  }
  if (!response.ok) throw refusal(response.status, await response.json().catch(() => null), response.headers.get('retry-after'));
  return response;
}

function gone(during = '') {
  return new ServerError('gone', `The server does not answer${during}.`, `Is "ingot serve" still running at ${address('').host}?`);
}

/** Returns the error for a status and the document that came with it. */
function refusal(status, body, seconds) {
  const { message = `status ${status}`, code, param } = body?.error ?? {};
  if (status === 401) return new ServerError('key', 'The server expects a key.', message);
  if (status === 429) {
    const wait = seconds ? ` Try again in ${seconds} second${seconds === '1' ? '' : 's'}.` : '';
    return new ServerError('refused', `The server is busy: too many answers wait.${wait}`, message);
  }
  if (status === 503) return new ServerError('refused', 'The server is closing and accepts no more messages.', message);
  if (status >= 500) return new ServerError('refused', 'The server failed.', message);
  if (status === 413) return new ServerError('refused', 'The message is too large for the server.', message);
  if (status === 404) return new ServerError('refused', 'The server does not have this model. Choose another one.', message);
  if (code === 'context_length_exceeded') {
    return new ServerError('refused', 'The conversation is longer than the context of the model. Shorten a message, or begin a new conversation.', message);
  }
  return new ServerError('refused', param ? `The server refuses the value of ${param}.` : 'The server refuses the request.', message);
}

/** Returns the models of the server. Raises ServerError. */
export async function models(key) {
  return (await (await request('v1/models', key)).json()).data;
}

/** Returns whether the server answers. */
export const isAlive = () => fetch(address('health')).then(({ ok }) => ok, () => false);

/** Yields the chunks of a streamed answer. Raises ServerError, and AbortError after `signal`. */
export async function* answer(body, key, signal) {
  const response = await request('v1/chat/completions', key, {
    method: 'POST', signal, headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
  });
  for await (const line of lines(response.body, signal)) {
    if (!line.startsWith('data:')) continue; // a comment during silence
    const data = line.slice(5).trim();
    if (data === '[DONE]') return;
    const chunk = JSON.parse(data);
    if (chunk.error?.type === 'invalid_request_error') throw refusal(400, chunk);
    if (chunk.error) throw new ServerError('refused', 'The server ended the answer.', chunk.error.message);
    yield chunk;
  }
  throw gone(' any more: the answer is not complete');
}

async function* lines(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      throw signal.aborted ? error : gone(' any more: the answer is not complete');
    }
    if (part.done) return;
    const found = (rest + part.value).split('\n');
    rest = found.pop();
    yield* found;
  }
}
