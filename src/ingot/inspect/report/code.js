// The C of the steps, unpacked when it is asked for first: most of a page is read without it.
let unpacked = null;
const codeOf = () => unpacked ??= read('code');

// The C of some steps of a plan, below the details of a node. steps: their numbers; code: of this model.
function showCode(aside, stage, steps, code) {
  if (!code) return;
  if (code.omitted) {
    aside.append(element('p', `No C: ${code.omitted}.`, {class: 'note'}));
    return;
  }
  const kernels = new Set();
  for (const step of steps) {
    if (!code.steps[step]) continue;
    const [text, loop] = code.steps[step].map((number) => code.texts[number]);
    const part = folded(`C of ${stage.ops[step]} ${stage.names[step]}`, loop ? `${loop}    ${indented(text)}` : text);
    part.open = true;
    aside.append(part);
    kernels.add(stage.ops[step]);
  }
  for (const kernel of kernels) aside.append(folded(`C of the kernel ${kernel}`, code.kernels[kernel]));
}

const indented = (text) => text.trimEnd().replaceAll('\n', '\n    ');

function folded(title, text) {
  const part = element('details', '', {class: 'code'});
  part.append(element('summary', title), element('pre', text));
  return part;
}
