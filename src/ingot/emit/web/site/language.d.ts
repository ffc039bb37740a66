import type { Model } from './model.js';

export interface Options {
  /** 0, unless it is given, for the most probable token each time; else how far chance goes among the best. */
  temperature?: number;
  /** How many are the best: 40 unless it is given. */
  most?: number;
  /** The same one gives the same tokens, here and natively; by chance unless it is given. 64 bits. */
  seed?: number | bigint;
  /** How many tokens at most; else until the model ends the text or its context is full. */
  count?: number;
  /** Ends the text early. */
  signal?: AbortSignal;
}

export interface Message {
  role: 'system' | 'user' | 'assistant';
  content: string;
}

/** A part of a conversation's text, and who wrote it. */
export interface Part {
  text: string;
  by: 'template' | Message['role'];
}

export interface Tokenizer {
  encode(text: string): number[];
  encodeParts(parts: Part[]): number[];
  /** A function that gives the text that each further id adds. */
  decoder(): (id: number) => string;
}

/** For one text at a time. What a prompt has in common with the last text is not computed again. Errors are ModelErrors. */
export interface Language {
  readonly model: Model;
  readonly tokenizer: Tokenizer;
  readonly context: number;
  /** Texts that go on with a prompt, each as soon as it is known. */
  stream(prompt: string, options?: Options): AsyncGenerator<string, void>;
  /**
   * The same of an answer. messages: a system message, where the model's template takes one, then the user's and the
   * assistant's in turns, the user's as the last. What these spell of control tokens stays text.
   */
  chat(messages: Message[], options?: Options): AsyncGenerator<string, void>;
  /** What goes on with a prompt, in ids. */
  tokens(prompt: number[], options?: Options): AsyncGenerator<number, void>;
}

/** The language model of a folder that `ingot emit-web` wrote, and whose model is loaded. */
export function language(model: Model, url: string | URL): Promise<Language>;
