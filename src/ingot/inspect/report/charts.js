// A number from 0 to 1 as a colour; few different ones, so that nodes of one colour are painted together.
const heat = (part) => {
  const level = Math.round(31 * Math.min(1, Math.max(0, part))) / 31;
  return `hsl(${48 - 42 * level} ${dark.matches ? `${45 + 35 * level}% ${22 + 22 * level}%` : `95% ${94 - 34 * level}%`})`;
};
const short = (number) => {
  const value = Number(number); // infinity is text
  return value && Math.abs(value) < 1e-3 ? value.toExponential(2) : value.toPrecision(3);
};
const QUANTITIES = {
  time: {title: 'time', text: (number) => `${(number / 1000).toFixed(1)} us`},
  bytes: {title: 'bytes', text: (number) => bytes(number)},
  flops: {title: 'FLOPs', text: (number) => number.toLocaleString('en')},
  error: {title: 'error', text: short},
};

// The colours of nodes by a quantity, relative to the largest; square roots keep small ones apart.
function heated(column) {
  const numbers = column.map((number) => number === null ? null : Number(number)); // infinity is text
  const largest = numbers.reduce((most, number) => Number.isFinite(number) ? Math.max(most, number) : most, 0);
  const fill = (node) => numbers[node] === null ? colour('--same') : heat(Math.sqrt(numbers[node] / (largest || 1)));
  return {fill, largest};
}

// A canvas that is painted when it is shown, when its size changes and when the theme changes.
function chart(section, label, height, paint, told) {
  const canvas = element('canvas', '', {'aria-label': label, class: 'chart'}), about = element('p', told);
  canvas.style.height = `${height}px`;
  section.append(canvas, about);
  let find = () => null;
  const draw = () => {
    const [drawn, width, high] = context(canvas);
    if (width <= 0) return;
    drawn.clearRect(0, 0, width, high);
    drawn.font = '12px system-ui, sans-serif';
    find = paint(drawn, width, high) ?? find;
  };
  const point = (event) => about.textContent = find(event.offsetX, event.offsetY) ?? told;
  canvas.addEventListener('pointermove', point);
  canvas.addEventListener('pointerdown', point);
  new ResizeObserver(draw).observe(canvas);
  dark.addEventListener('change', draw);
}

// One run: a row for each thread, gaps where it waits.
function showTimeline(section, {threads, waiting, spans, steps}) {
  const end = spans.reduce((last, span) => Math.max(last, span[3]), 1), row = 34;
  section.append(element('h2', 'By thread'));
  const waits = waiting.map((part) => `${(100 * part).toFixed(0)} %`).join(', ');
  chart(section, 'The threads of a run: time from left to right, gaps are waits', threads * row + 4, (drawn, width) => {
    const x = (at) => at * width / end;
    drawn.textBaseline = 'middle';
    for (const [thread, step, begin, last] of spans) {
      const [left, wide] = [x(begin), Math.max(0.5, x(last) - x(begin))];
      drawn.fillStyle = fill(steps[step].split(' ')[0]);
      drawn.fillRect(left, thread * row + 3, wide, row - 6);
      if (wide < 40) continue;
      drawn.fillStyle = colour('--ink');
      drawn.fillText(cut(drawn, steps[step], wide - 8), left + 4, thread * row + row / 2);
    }
    return (px, py) => {
      const thread = Math.floor(py / row), at = px * end / width;
      const span = spans.find((each) => each[0] === thread && at >= each[2] && at < each[3]);
      return span ? `${steps[span[1]]}: ${((span[3] - span[2]) / 1000).toFixed(1)} us, from ${(span[2] / 1000).toFixed(1)} us` : null;
    };
  }, `One run of ${(end / 1000).toFixed(1)} us without additional barriers. The threads have no task for ${waits} of it.`);
}

// Steps by operations per byte and rate, under the peak rates of the machine.
function showRoofline(section, measured, {gflops, gigabytes_per_second: speed}) {
  const points = measured.filter((row) => row.flops && row.bytes && row.gflops)
    .map((row) => ({row, x: row.flops / row.bytes, y: row.gflops}));
  if (!points.length) return;
  const xs = points.map((point) => point.x), ys = points.map((point) => point.y);
  const low = [Math.min(...xs, gflops / speed) / 2, Math.min(...ys, gflops / 10) / 2];
  const high = [Math.max(...xs, gflops / speed) * 2, Math.max(...ys, gflops) * 2];
  section.append(element('h2', 'Roofline'));
  chart(section, 'Roofline: operations per byte from left to right, GFLOP/s upwards', 320, (drawn, width, height) => {
    const x = (value) => 46 + (width - 60) * Math.log(value / low[0]) / Math.log(high[0] / low[0]);
    const y = (value) => height - 24 - (height - 36) * Math.log(value / low[1]) / Math.log(high[1] / low[1]);
    drawn.fillStyle = colour('--faint');
    drawn.strokeStyle = colour('--line');
    drawn.lineWidth = 1;
    drawn.textBaseline = 'middle';
    for (let power = Math.ceil(Math.log10(low[1])); power <= Math.log10(high[1]); power++) {
      drawn.strokeRect(46, y(10 ** power), width - 60, 0);
      drawn.fillText(`${10 ** power}`, 4, y(10 ** power));
    }
    for (let power = Math.ceil(Math.log10(low[0])); power <= Math.log10(high[0]); power++)
      drawn.fillText(`${10 ** power}`, x(10 ** power) - 6, height - 8);
    drawn.strokeStyle = colour('--accent');
    drawn.lineWidth = 2;
    drawn.beginPath();
    drawn.moveTo(x(low[0]), y(Math.max(low[1], low[0] * speed)));
    drawn.lineTo(x(gflops / speed), y(gflops));
    drawn.lineTo(x(high[0]), y(gflops));
    drawn.stroke();
    for (const point of points) {
      drawn.beginPath();
      drawn.arc(x(point.x), y(point.y), 5, 0, 7);
      drawn.fillStyle = fill(point.row.kernel);
      drawn.fill();
      drawn.strokeStyle = colour('--ink');
      drawn.lineWidth = 1;
      drawn.stroke();
    }
    return (px, py) => {
      const near = points.map((point) => [Math.hypot(x(point.x) - px, y(point.y) - py), point]).sort((a, b) => a[0] - b[0])[0];
      return near[0] > 14 ? null : `${near[1].row.node}, ${near[1].row.kernel}: ${near[1].y.toFixed(1)} GFLOP/s, ` +
        `${near[1].x.toFixed(2)} FLOPs per byte, ${(100 * near[1].row.of_limit).toFixed(0)} % of the limit`;
    };
  }, `Peak ${gflops.toFixed(0)} GFLOP/s and ${speed.toFixed(1)} GB/s. GFLOP/s upwards, FLOPs per byte to the right; point at a step.`);
}

// The arena for sizes of a dim, and the sum of the activations, both axes by powers.
function showSizes(section, {dim, rows}) {
  const points = rows.filter((row) => row.arena_bytes), columns = [['arena', 'arena_bytes'], ['activations without reuse', 'activation_bytes']];
  section.append(element('h2', `Memory of a run by ${dim}`));
  if (points.length > 1) {
    const sizes = points.map((row) => row.size), all = points.flatMap((row) => columns.map(([, key]) => row[key] || 1));
    const [least, most, low, high] = [sizes[0], sizes.at(-1), Math.min(...all), Math.max(...all) * 1.2];
    chart(section, `Bytes upwards, ${dim} to the right`, 240, (drawn, width, height) => {
      const x = (size) => 70 + (width - 90) * Math.log(size / least) / Math.log(most / least);
      const y = (value) => height - 26 - (height - 40) * Math.log(value / low) / Math.log(high / low);
      drawn.textBaseline = 'middle';
      drawn.fillStyle = colour('--faint');
      for (const value of [low, points.at(-1).arena_bytes]) drawn.fillText(bytes(value), 4, y(value));
      for (const size of sizes) drawn.fillText(size, x(size) - 6, height - 8);
      for (const [i, [title, key]] of columns.entries()) {
        drawn.strokeStyle = drawn.fillStyle = colour(key === 'arena_bytes' ? '--accent' : '--faint');
        drawn.lineWidth = 2;
        drawn.beginPath();
        points.forEach((row) => drawn.lineTo(x(row.size), y(row[key] || 1)));
        drawn.stroke();
        drawn.fillText(title, 78, 16 + 18 * i);
      }
      return (px) => {
        const near = points.map((row) => [Math.abs(x(row.size) - px), row]).sort((a, b) => a[0] - b[0])[0][1];
        return `${dim} ${near.size}: arena ${bytes(near.arena_bytes)}, activations without reuse ${bytes(near.activation_bytes)}`;
      };
    }, 'Point at a size.');
  }
  section.append(table(
    [{title: dim, isNumber: true}, {title: 'arena', isNumber: true}, {title: 'lower bound', isNumber: true, isWide: true},
      {title: 'activations', isNumber: true}, {title: ''}],
    rows.map((row) => [row.size, ...['arena_bytes', 'lower_bound_bytes', 'activation_bytes'].map((key) => row.error ? '' : bytes(row[key])), row.error ?? '']),
  ));
}

function showModules(section, measured, modules) {
  const totals = new Map(), all = measured.reduce((sum, row) => sum + row.nanoseconds, 0) || 1;
  for (const row of measured) totals.set(modules[row.node] || '(none)', (totals.get(modules[row.node] || '(none)') ?? 0) + row.nanoseconds);
  if (totals.size < 2) return;
  section.append(element('h2', 'By module'), table(
    [{title: 'module'}, {title: 'us', isNumber: true}, {title: 'share', isShare: true}],
    [...totals].sort((a, b) => b[1] - a[1]).slice(0, 200).map(([name, time]) => [name, (time / 1000).toFixed(1), time / all]),
  ));
}

// Changes of passes, each with the difference of the graph's text.
function showPasses(section, passes) {
  if (!passes) {
    section.append(element('p', 'No changes of passes: the graph is large, or is a saved program or a step of training.'));
    return;
  }
  section.append(element('p', `${passes.length} change${passes.length === 1 ? '' : 's'}, in the order of the passes.`));
  for (const [number, {name, nodes, diff, more}] of passes.entries()) {
    const part = element('details'), text = element('pre');
    part.append(element('summary', `${number + 1}. ${name}: ${nodes} nodes after it`), text);
    for (const line of diff) {
      const kind = {'+': 'added', '-': 'removed'}[line[0]] ?? 'kept';
      text.append(element('span', `${line}\n`, {class: kind}));
    }
    if (more) text.append(element('span', `and ${more} more lines\n`));
    part.open = number === 0;
    section.append(part);
  }
}

function showErrors(section, errors) {
  if (!errors) {
    section.append(element('p', 'No errors: the model was not compared for this report, which --compare does.'));
    return;
  }
  section.append(element('pre', errors.text.split('\n').filter((line) => !line.includes('|')).join('\n'), {class: 'said'}));
  const shown = (number) => number === null || number === undefined ? '' : short(number);
  section.append(element('h2', 'Values'), table(
    [{title: 'value'}, {title: 'kernel', isWide: true}, {title: 'local', isNumber: true}, {title: 'accumulated', isNumber: true},
      {title: 'tolerance', isNumber: true}, {title: 'noise', isNumber: true, isWide: true}, {title: 'cosine', isNumber: true, isWide: true},
      {title: 'problem', isWide: true}],
    errors.values.slice(0, 1000).map((row) => [row.name, row.kernel, shown(row.local?.maximum), shown(row.accumulated?.maximum),
      shown(row.tolerance), shown(row.noise), row.cosine === null ? '' : Number(row.cosine).toFixed(8), row.problem]),
  ));
  for (const row of errors.values.filter((each) => each.heat)) {
    const {rows, columns, cells} = row.heat, largest = Math.max(...cells.flat().map(Number)) || 1;
    section.append(element('h2', row.name));
    chart(section, `Errors of ${row.name}`, Math.max(48, 12 * cells.length), (drawn, width, height) => {
      const [w, h] = [width / cells[0].length, height / cells.length];
      cells.forEach((line, i) => line.forEach((error, j) => {
        drawn.fillStyle = heat(Number(error) && 1 + Math.log10(Number(error) / largest) / 4);
        drawn.fillRect(j * w, i * h, w + 0.5, h + 0.5);
      }));
      return (px, py) => {
        const error = cells[Math.floor(py / h)]?.[Math.floor(px / w)];
        return error === undefined ? null : `${short(error)} near row ${Math.floor(py / h * rows / cells.length)}, ` +
          `column ${Math.floor(px / w * columns / cells[0].length)}`;
      };
    }, `${row.dtype}[${row.shape}] as ${rows} rows and ${columns} columns; the largest error is ${short(largest)}, colours span four decades.`);
  }
}

// Warnings by kind; goTo: shows a node of a stage.
function showWarnings(section, warnings, goTo) {
  if (!warnings.length) section.append(element('p', 'Nothing to warn of.'));
  for (const {title, about, stage, count, bytes: size, rows} of warnings) {
    section.append(element('h2', `${title}: ${count.toLocaleString('en')}${size ? `, ${bytes(size)}` : ''}`), element('p', about, {class: 'note'}));
    const columns = [{title: stage ? 'node' : 'tensor'}, {title: ''}];
    if (size) columns.push({title: 'bytes', isNumber: true});
    section.append(table(columns, rows.map(([name, text, each]) => [stage ? link(name, () => goTo(stage, name)) : name, text, bytes(each)])));
    if (rows.length < count) section.append(element('p', `and ${(count - rows.length).toLocaleString('en')} more`));
  }
}

function link(text, follow) {
  const button = element('button', text, {type: 'button', class: 'link'});
  button.addEventListener('click', follow);
  return button;
}
