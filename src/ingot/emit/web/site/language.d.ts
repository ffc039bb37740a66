import type { Model } from './model.js';

export interface Options {
  /** 0, unless it is given, for the most probable token each time; else how far chance goes among the best. */
  temperature?: number;
  /** How many are the best: 40 unless it is given. */
  most?: number;
  /** How many tokens at most; else until the model ends the text or its context is full. */
  count?: number;
  /** Ends the text early. */
  signal?: AbortSignal;
}

/** For one text at a time. What a prompt has in common with the last text is not computed again. */
export interface Language {
  readonly model: Model;
  readonly tokenizer: { encode(text: string): number[]; decoder(): (id: number) => string };
  readonly context: number;
  /** Texts that go on with a prompt, each as soon as it is known. */
  stream(prompt: string, options?: Options): AsyncGenerator<string, void>;
  /** The same in ids. */
  tokens(prompt: number[], options?: Options): AsyncGenerator<number, void>;
}

/** The language model of a folder that `ingot emit-web` wrote, and whose model is loaded. */
export function language(model: Model, url: string | URL): Promise<Language>;
