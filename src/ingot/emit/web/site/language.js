// A language model over model.js: tokens in, tokens out. The key/value cache stays on the device.

import { written } from './conversation.js';
import { ModelError } from './model.js';
import { anySeed, draw } from './sample.js';
import { loadTokenizer } from './tokenizer.js';

/** The language model of a folder whose model is loaded. */
export async function language(model, url) {
  return new Language(model, await loadTokenizer(new URL('tokenizer.json', new URL(url, document.baseURI))));
}

class Language {
  #cached = []; // the ids whose keys and values are cached

  constructor(model, tokenizer) {
    this.model = model;
    this.tokenizer = tokenizer;
    ({ context: this.context, ends: this.ends, chat: this.form = null } = model.plan.page);
  }

  /** Texts that continue a prompt, each as soon as it is known, until the model ends it or `signal` is aborted. */
  async *stream(prompt, options = {}) {
    yield* this.#texts(this.tokenizer.encode(prompt), options);
  }

  /** The same for an answer to a conversation. */
  async *chat(messages, options = {}) {
    if (!this.form) throw new ModelError('input', 'the model has no chat template here, expected a prompt');
    yield* this.#texts(this.tokenizer.encodeParts(written(this.form, messages)), options);
  }

  async *#texts(prompt, options) {
    const text = this.tokenizer.decoder();
    for await (const id of this.tokens(prompt, options)) yield text(id);
  }

  /**
   * Ids that continue others. temperature: 0 for the most probable one, else sampling among the `most` best. seed: of
   * sampling. count: how many at most.
   */
  async *tokens(prompt, { temperature = 0, most = 40, seed = anySeed(), count = Infinity, signal } = {}) {
    if (!prompt.length) throw new ModelError('input', 'no text, expected at least one token');
    if (prompt.length > this.context) {
      throw new ModelError('input', `the text is too long: ${prompt.length} tokens, expected at most ${this.context}`);
    }
    const outputs = temperature > 0 ? ['logits'] : ['tokens'];
    const chance = { temperature, most, seed: BigInt(seed) };
    // The last token is always computed, because its logits are needed.
    let known = 0;
    while (known < prompt.length - 1 && this.#cached[known] === prompt[known]) known++;
    this.#cached.length = known;
    const rows = this.model.programs.prefill.sizes.rows.most;
    let found;
    for (let begin = known; begin < prompt.length; begin += rows) {
      if (signal?.aborted) return;
      found = await this.#append('prefill', prompt.slice(begin, begin + rows), outputs);
    }
    for (let i = 0; i < count; i++) {
      const id = found.tokens?.data[0] ?? draw(found.logits.data, chance, i);
      if (signal?.aborted || this.ends.includes(id)) return;
      yield id;
      if (this.#cached.length === this.context || i + 1 === count) return;
      found = await this.#append('decode', [id], outputs);
    }
  }

  async #append(program, ids, outputs) {
    const { inputs } = this.model.programs[program];
    const begin = this.#cached.length;
    const blocks = inputs.blocks.shape[1];
    const given = {
      ids,
      positions: ids.map((_, i) => begin + i),
      owners: ids.map(() => 0),
      blocks: Array.from({ length: blocks }, (_, i) => i),
      take: [ids.length - 1],
    };
    const wanted = Object.fromEntries(Object.keys(inputs).map((name) => [name, given[name]]));
    const found = await this.model.run(wanted, { program, outputs });
    this.#cached.push(...ids);
    return found;
  }
}
