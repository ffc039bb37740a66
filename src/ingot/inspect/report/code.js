// The C of the steps, unpacked when it is asked for first: most of a page is read without it.
let unpacked = null;
const codeOf = () => unpacked ??= read('code');

// The C of some steps of a plan, in the details of a node: that of the steps first, that of their kernels last.
function showCode(aside, stage, steps, code) {
  if (!code) return;
  const about = aside.querySelector('dl');
  if (code.omitted) {
    about.before(element('p', `No C: ${code.omitted}.`, {class: 'note'}));
    return;
  }
  const kernels = new Set();
  for (const step of steps) {
    if (!code.steps[step]) continue;
    const [text, loop, layer] = code.steps[step], part = folded(`C of ${stage.ops[step]} ${stage.names[step]}`, code.texts[text]);
    part.open = true;
    about.before(part);
    if (code.texts[loop]) about.before(folded(`The loop around it, where layer is ${layer}`, code.texts[loop]));
    kernels.add(stage.ops[step]);
  }
  for (const kernel of kernels) aside.append(folded(`C of the kernel ${kernel}`, code.kernels[kernel]));
}

function folded(title, text) {
  const part = element('details', '', {class: 'code'});
  part.append(element('summary', title), element('pre', text));
  return part;
}
