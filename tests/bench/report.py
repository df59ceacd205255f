# SPDX-License-Identifier: Apache-2.0
"""Rows of figures, tables and plots of them, and the document that holds both."""

import math
import os
import re
import statistics

LESS, MORE = 'less is better', 'more is better'
NATIVE, WSMFS, PLAIN = 'native', 'wsmfs', 'no passthrough'
PEERS = ('bindfs', 'mergerfs')
VARIANTS = (NATIVE, WSMFS, PLAIN, *PEERS)


class Row:
    """One thing that was measured: a figure a round for each variant, and what is aimed at.

    Aims are ratios of wsmfs to native (wsmfs_native), to the better peer (wsmfs_peer), of wsmfs
    without passthrough to the better peer (plain_peer), or the figure itself (absolute)."""

    def __init__(self, title, unit, better, **aims):
        self.title = title
        self.unit = unit
        self.better = better
        self.aims = aims
        self.values = {}

    def add(self, variant, value):
        self.values.setdefault(variant, []).append(value)

    def median(self, variant):
        return statistics.median(self.values[variant]) if variant in self.values else None

    def better_peer(self):
        there = [p for p in PEERS if p in self.values]
        if not there:
            return None
        return (min if self.better == LESS else max)(there, key=self.median)

    def ratio(self, variant, to):
        """The median of the rounds' ratios: both of a ratio had the same weather."""
        if variant not in self.values or to not in self.values:
            return None
        pairs = [(a, b) for a, b in zip(self.values[variant], self.values[to]) if b]
        return statistics.median(a / b for a, b in pairs) if pairs else None

    def ratios(self):
        peer = self.better_peer()
        return {'wsmfs_native': self.ratio(WSMFS, NATIVE), 'wsmfs_peer': self.ratio(WSMFS, peer),
                'plain_native': self.ratio(PLAIN, NATIVE), 'plain_peer': self.ratio(PLAIN, peer)}

    def missed(self):
        """The aims that were not met: name → (ratio, aim)."""
        found = {}
        for name, aim in self.aims.items():
            is_ = self.median(WSMFS) if name == 'absolute' else self.ratios()[name]
            if is_ is not None and not (is_ <= aim if self.better == LESS else is_ >= aim):
                found[name] = (is_, aim)
        return found

    def met(self):
        """'yes', 'no', or '' when there is no aim or nothing to compare with."""
        if self.missed():
            return 'no'
        known = [self.median(WSMFS) if name == 'absolute' else self.ratios()[name] for name in self.aims]
        return 'yes' if known and None not in known else ''

    def __str__(self):
        return f'{self.title}: ' + ', '.join(f'{v} {number(self.median(v))}' for v in VARIANTS if v in self.values) + \
            f' {self.unit}'

    def as_json(self):
        return {'title': self.title, 'unit': self.unit, 'better': self.better, 'aims': self.aims,
                'values': self.values, 'ratios': self.ratios(), 'missed': self.missed()}


class Cost:
    """What a file costs a daemon: figures that depend little on what else the machine does."""

    def __init__(self, counts):
        self.counts = counts  # whether it counts its requests
        self.requests = {}    # by operation, but for those that nobody waits for; the last round's
        self.cpu_us = []
        self.switches = []


def number(x):
    if x is None:
        return ''
    if x == 0:
        return '0'
    digits = max(0, 2 - math.floor(math.log10(abs(x))))
    return f'{x:.{min(digits, 3)}f}'


# ── tables ──────────────────────────────────────────────────────────────────────────────────

RATIO_TITLES = {'wsmfs_native': 'wsmfs ÷ native', 'wsmfs_peer': 'wsmfs ÷ better peer',
                'plain_native': 'no passthrough ÷ native', 'plain_peer': 'no passthrough ÷ better peer'}


def aim_text(row):
    sign = '≤' if row.better == LESS else '≥'
    return ', '.join((RATIO_TITLES[name] if name != 'absolute' else 'wsmfs') + f' {sign} {aim:g}'
                     for name, aim in row.aims.items())


def table(rows):
    """Cells of text, the first line the titles."""
    shown = [v for v in VARIANTS if any(v in r.values for r in rows)]
    ratios = [k for k in RATIO_TITLES if any(r.ratios()[k] is not None for r in rows)]
    aims = any(r.aims for r in rows)
    lines = [['', 'unit', *shown, *(RATIO_TITLES[k] for k in ratios), *(['aim', 'met'] if aims else [])]]
    for r in rows:
        line = [r.title, r.unit, *(number(r.median(v)) for v in shown), *(number(r.ratios()[k]) for k in ratios)]
        if aims:
            line += [aim_text(r), r.met()]
        lines.append(line)
    return lines


def cost_table(costs):
    """costs: (what, variant) → Cost."""
    lines = [['', 'daemon', 'its CPU, µs a file', 'its switches a file', 'requests a file', 'which']]
    for what, variant in sorted(costs, key=lambda k: [k[0] for k in costs].index(k[0])):
        c = costs[what, variant]
        ops = sorted(c.requests.items(), key=lambda p: (-round(p[1], 1), p[0]))
        which = ', '.join(op if abs(n - 1) < 0.02 else f'{number(n)} {op}' for op, n in ops) or 'none'
        requests = [number(round(sum(c.requests.values()), 2)), which] if c.counts else ['', '']
        lines.append([what, variant, number(statistics.median(c.cpu_us)), number(statistics.median(c.switches)),
                      *requests])
    return lines


def as_text(lines):
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return '\n'.join('  '.join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths)))
                     .rstrip() for line in lines)


def as_markdown(lines):
    head, *rest = [('| ' + ' | '.join(line) + ' |') for line in lines]
    rule = '| --- |' + ' ---: |' * (len(lines[0]) - 1)
    return '\n'.join([head, rule, *rest])


# ── plots ───────────────────────────────────────────────────────────────────────────────────

COLOURS = {WSMFS: '#1b6ca8', PLAIN: '#7fb7dd', 'bindfs': '#c8553d', 'mergerfs': '#e0a458'}
LEFT, WIDTH, LINE, TOP = 270, 760, 22, 58


def plot(rows, title):
    """An SVG picture: each variant's ratio to native, a line a row, on a logarithmic scale."""
    rows = [r for r in rows if NATIVE in r.values and r.unit != '× one']
    points = [(i, v, r.ratio(v, NATIVE)) for i, r in enumerate(rows) for v in COLOURS if r.ratio(v, NATIVE)]
    if not points:
        return None
    low = min(0.5, *(p[2] for p in points)) / 1.15
    high = max(2.0, *(p[2] for p in points)) * 1.15

    def x(ratio):
        return LEFT + (WIDTH - LEFT - 20) * math.log(ratio / low) / math.log(high / low)

    bottom = TOP + LINE * len(rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 34}" font-family="sans-serif" '
           f'font-size="12"><rect width="100%" height="100%" fill="white"/>',
           f'<text x="10" y="20" font-size="14">{title}</text>']
    for k, (v, colour) in enumerate(c for c in COLOURS.items() if any(p[1] == c[0] for p in points)):
        out.append(f'<circle cx="{LEFT + k * 120}" cy="36" r="5" fill="{colour}"/>'
                   f'<text x="{LEFT + 9 + k * 120}" y="40">{v}</text>')
    for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500):
        if low <= tick <= high:
            out.append(f'<line x1="{x(tick):.1f}" y1="{TOP - 8}" x2="{x(tick):.1f}" y2="{bottom}" '
                       f'stroke="{"#444" if tick == 1 else "#ddd"}"/>'
                       f'<text x="{x(tick):.1f}" y="{bottom + 15}" text-anchor="middle">{tick:g}</text>')
    for i, r in enumerate(rows):
        out.append(f'<text x="{LEFT - 10}" y="{TOP + i * LINE + 9}" text-anchor="end">{r.title}</text>')
    for i, v, ratio in points:
        out.append(f'<circle cx="{x(ratio):.1f}" cy="{TOP + i * LINE + 5}" r="5" fill="{COLOURS[v]}" '
                   f'fill-opacity="0.85"/>')
    out.append(f'<text x="{WIDTH - 20}" y="{bottom + 30}" text-anchor="end">times native, {rows[0].better}</text></svg>')
    return '\n'.join(out) + '\n'


# ── the document ────────────────────────────────────────────────────────────────────────────

def replace_between(text, name, content):
    """Puts content between the markers of that name; they must be there, once."""
    begin, end = f'<!-- measured: {name} -->', f'<!-- end: {name} -->'
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f'the document has no place for "{name}"')
    return re.sub(re.escape(begin) + '.*?' + re.escape(end), lambda m: f'{begin}\n{content}\n{end}', text, flags=re.S)


def write_document(path, weather, groups, costs, facts):
    """Puts each group's table, facts and plot into the document at `path`, the plots beside it."""
    with open(path, encoding='utf-8') as f:
        text = f.read()
    pictures = os.path.join(os.path.dirname(path), 'benchmarks')
    for group, rows in groups.items():
        parts = [facts, as_markdown(table(rows))]
        picture = plot(rows, f'{group}, {weather} machine')
        if picture:
            os.makedirs(pictures, exist_ok=True)
            with open(f'{pictures}/{group}-{weather}.svg', 'w', encoding='utf-8') as f:
                f.write(picture)
            parts.append(f'![ratios to native](benchmarks/{group}-{weather}.svg)')
        text = replace_between(text, f'{group}, {weather}', '\n\n'.join(parts))
    for group, rows in groups.items():
        own = {k: c for k, c in costs.items() if k[0] in {r.title for r in rows}}
        if own:
            text = replace_between(text, f'costs of {group}, {weather}', '\n\n'.join([facts, as_markdown(cost_table(own))]))
    with open(path, 'w', encoding='utf-8') as f:
        f.write(text)
