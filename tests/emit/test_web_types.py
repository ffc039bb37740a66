"""The declarations of model.js and language.js, by TypeScript's compiler."""

import re
import subprocess
from pathlib import Path

import pytest

from web_pages import SITE

COMPILER = "typescript@5.9.3"
USES = """
import { load, ModelError, type Progress } from './model.js';
import { language, type Message } from './language.js';

const model = await load(new URL('./', import.meta.url), { onProgress: ({ loaded }: Progress) => loaded.toFixed() });
const { y } = await model.run({ x: [1, 2], z: { data: new Float32Array(2), shape: [1, 2] } }, { outputs: ['y'] });
const shape: number[] = y.shape;
const dtype: 'f32' | 'i32' | 'i64' | 'bool' = y.dtype;
const messages: Message[] = [{ role: 'user', content: `${shape} ${dtype}` }];
const words = await language(model, './');
for await (const text of words.chat(messages, { seed: 7n, temperature: 0.5, count: 3 })) text.trim();
const ids: number[] = words.tokenizer.encode('a');
for await (const id of words.tokens(ids, { signal: AbortSignal.timeout(5) })) id.toFixed();
model.destroy();
try { await model.run({}); } catch (error) { if (error instanceof ModelError && error.kind === 'lost') throw error; }
// @ts-expect-error: no such option
await load('./', { progress: 1 });
// @ts-expect-error: a shape is of numbers
await model.run({ x: { data: [1], shape: ['n'] } });
// @ts-expect-error: no such role
words.chat([{ role: 'tool', content: '' }]);
export {};
"""


@pytest.mark.slow
def test_declarations_are_what_typescript_takes(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "webgpu.md").read_text()
    for file in SITE.glob("*.d.ts"):
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "uses.ts").write_text(USES)
    (tmp_path / "guide.ts").write_text(re.findall(r"^```ts\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)[0])
    options = "--noEmit --strict --target es2022 --module es2022 --moduleResolution bundler --lib es2022,esnext,dom"
    for command in (
        ["npm", "install", "--silent", "--no-audit", "--no-fund", COMPILER],
        ["node_modules/.bin/tsc", *options.split(), "uses.ts", "guide.ts"],
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
