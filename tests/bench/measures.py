# SPDX-License-Identifier: Apache-2.0
"""What is measured. Each group fills rows; within a row the variants take turns, so that all of
them see the same weather, and another one begins each round."""

import json
import os
import shutil
import subprocess
import time

from report import LESS, MORE, Cost, Row
from sourcetree import make_repository
from variants import Trouble, Wsmfs, die_with_parent

ASYNCHRONOUS = {'release', 'releasedir', 'forget'}  # nobody waits for these
STEP_TIMEOUT_S = 900


class Bench:
    """What the groups share: the variants, the sizes, a place for helpers' files."""

    def __init__(self, top, variants, sizes, rounds, cpu=None, say=print):
        self.top = top
        self.variants = variants
        self.sizes = sizes
        self.rounds = rounds
        self.cpu = cpu
        self.say = say
        self.costs = {}  # (what, variant) → Cost, of the small files
        self.notes = []
        self.env = {'PATH': os.environ['PATH'], 'HOME': top, 'LC_ALL': 'C', 'GIT_CONFIG_NOSYSTEM': '1',
                    'GIT_CONFIG_COUNT': '2', 'GIT_CONFIG_KEY_0': 'gc.auto', 'GIT_CONFIG_VALUE_0': '0',
                    'GIT_CONFIG_KEY_1': 'safe.directory', 'GIT_CONFIG_VALUE_1': '*'}

    def turns(self, n_round):
        """The variants, another one first in each round."""
        k = n_round % len(self.variants)
        return self.variants[k:] + self.variants[:k]

    def run(self, words, cwd='/'):
        """Runs a command; (seconds, what it printed). A string is a line for the shell."""
        if isinstance(words, str):
            words = ['bash', '-c', 'set -o pipefail; ' + words]
        start = time.perf_counter()
        done = subprocess.run(words, cwd=cwd, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False, errors='replace', timeout=STEP_TIMEOUT_S,
                              preexec_fn=die_with_parent(cpu=self.cpu))
        took_s = time.perf_counter() - start
        if done.returncode != 0:
            raise Trouble(f'{words} in {cwd} ended with {done.returncode}: {(done.stdout + done.stderr)[-800:]}')
        return took_s, done.stdout


def settle():
    """Lets what was written go to the disk now, not in the midst of the next measurement."""
    os.sync()


def write_file(path, size):
    piece = os.urandom(1 << 20)
    with open(path, 'wb') as f:
        for _ in range(size >> 20):
            f.write(piece)


# ── fio ─────────────────────────────────────────────────────────────────────────────────────

def fio_rows(quick):
    cases = [(bs, order, what, jobs) for bs in ('4k', '128k') for what in ('read', 'write')
             for order in ('sequential', 'random') for jobs in (1, 4)]
    if quick:
        cases = [c for c in cases if c[0] == '4k' and c[1] == 'random' and c[3] == 1]
    return {c: Row(f'{c[0]} {c[1]} {c[2]}, {c[3]} job{"s" * (c[3] > 1)}', 'MiB/s', MORE,
                   wsmfs_native=0.95, plain_peer=1.0) for c in cases}


def run_fio(bench, where, case):
    bs, order, what, jobs = case
    mode = what if order == 'sequential' else 'rand' + what
    size_mib = bench.sizes.fio_mib // jobs
    _, text = bench.run(['fio', '--name=bench', f'--directory={where}/fio', '--filename_format=f.$jobnum',
                         f'--rw={mode}', f'--bs={bs}', f'--size={size_mib}m', f'--numjobs={jobs}', '--ioengine=psync',
                         '--invalidate=0', '--time_based', f'--runtime={bench.sizes.fio_ms}ms', '--thread',
                         '--group_reporting', '--norandommap', '--gtod_reduce=1', '--eta=never',
                         '--output-format=json'])
    return json.loads(text[text.index('{'):])['jobs'][0][what]['bw_bytes'] / (1 << 20)


def measure_fio(bench, quick):
    if not shutil.which('fio'):
        bench.notes.append('fio is not on this machine: its rows are left out')
        return []
    rows = fio_rows(quick)
    for v in bench.variants:
        os.mkdir(f'{v.dir}/fio')
        for i in range(4):
            size_mib = bench.sizes.fio_mib if i == 0 else bench.sizes.fio_mib // 4
            write_file(f'{v.dir}/fio/f.{i}', size_mib << 20)
    for case, row in rows.items():
        for n in range(bench.rounds):
            for v in bench.turns(n):
                settle()
                bench.run(f'cat {v.dir}/fio/f.* >/dev/null')
                row.add(v.name, run_fio(bench, v.dir, case))
        bench.say(row)
    for v in bench.variants:
        shutil.rmtree(f'{v.dir}/fio')
    return list(rows.values())


# ── small files ─────────────────────────────────────────────────────────────────────────────

# phase of smallfiles.c → what it is called; None: not measured
UNAIMED = 'stat, the first after that'  # one request everywhere, since a write makes the times unknown
PASSES = [('mkdir', None), ('create', 'create + write + close'), ('stat', UNAIMED),
          ('stat', 'stat of a known file'), ('open', 'open + read + close of a known file'), ('rename', 'rename'),
          ('unlink', 'unlink'), ('rmdir', None)]


def compile_smallfiles(top):
    program = f'{top}/smallfiles'
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'smallfiles.c')
    subprocess.run([os.environ.get('CC', 'cc'), '-O2', '-o', program, source], check=True)
    return program


def counted(v, action):
    """Runs `action`; (its result, requests by operation that it made)."""
    if not isinstance(v, Wsmfs):
        return action(), {}
    v.requests()
    before, between = v.requests(), v.requests()
    result = action()
    after = v.requests()
    own = {op: between[op] - before[op] for op in between}  # what reading the counters takes
    return result, {op: max(0, after[op] - between[op] - own[op]) for op in after}


def with_cost(bench, v, what, n_files, action):
    """Runs `action` and notes what it cost the daemon for each of `n_files`; its result."""
    before = v.cost()
    result, requests = counted(v, action)
    if before is None:
        return result
    after = v.cost()
    seen = bench.costs.setdefault((what, v.name), Cost(isinstance(v, Wsmfs)))
    seen.requests = {op: r / n_files for op, r in requests.items() if op not in ASYNCHRONOUS and r / n_files >= 0.005}
    seen.cpu_us.append((after[0] - before[0]) / n_files / 1000)
    seen.switches.append((after[1] - before[1]) / n_files)
    return result


def small_pass(bench, program, v, phase, title, row):
    where, n = f'{v.dir}/small', bench.sizes.small_files
    words = [program, phase, where, str(n)]
    if row is None:
        bench.run(words)
    else:
        row.add(v.name, int(with_cost(bench, v, title, n, lambda: bench.run(words)[1])) / n / 1000)


def measure_small(bench, quick):
    del quick
    program = compile_smallfiles(bench.top)
    rows = {title: Row(title, 'µs', LESS, **({} if title == UNAIMED else {'wsmfs_peer': 0.5}))
            for _, title in PASSES if title}
    for n in range(bench.rounds):
        for v in bench.turns(n):
            os.mkdir(f'{v.dir}/small')
        settle()
        for phase, title in PASSES:
            for v in bench.turns(n):
                small_pass(bench, program, v, phase, title, rows.get(title))
        for v in bench.variants:
            os.rmdir(f'{v.dir}/small')
        bench.say(f'small files, round {n + 1}')
    return list(rows.values())


# ── a source tree ───────────────────────────────────────────────────────────────────────────

# title, most that it may take against native, whether the disk is to be at rest before it, command
# with {src} the repository and {tar} an archive of its files; 'copy' is what git clones into
TREE_STEPS = [
    ('git clone', 1.5, True, 'git clone -q --no-hardlinks {src} copy'),
    (None, None, False, 'git -C copy status -s'),  # the first looks into files that are as new as the index
    ('git status', 1.5, False, 'git -C copy status -s'),
    ('grep -r', 1.5, False, 'grep -r --exclude-dir=.git queue_offset copy | wc -l'),
    ('tar c', 1.5, False, 'tar cf - copy | cat >/dev/null'),
    (None, None, False, 'mkdir out'),
    ('tar x', 1.5, True, 'tar xf {tar} -C out'),
    ('find', 1.5, False, 'find out -type f -size +100k | wc -l'),
    ('du', 1.5, False, 'du -s out'),
    ('rm -rf', 2.5, True, 'rm -rf out'),
    (None, None, False, 'rm -rf copy'),
]


class Source:
    """The repository and its archive, on the native file system beside the variants."""

    def __init__(self, bench):
        self.src = f'{bench.top}/source'
        self.tar = f'{bench.top}/source.tar'
        if not os.path.exists(self.tar):
            self.size = make_repository(self.src, bench.sizes.tree_files, bench.env)
            bench.run(['tar', 'cf', self.tar, '--exclude=.git', '-C', self.src, '.'])


def tree_step(bench, v, title, line, row):
    if row is None:
        bench.run(line, v.dir)
        return
    took_s, _ = with_cost(bench, v, title, bench.sizes.tree_files, lambda: bench.run(line, v.dir))
    row.add(v.name, took_s * 1000)


def measure_tree(bench, quick):
    del quick
    if not shutil.which('git'):
        bench.notes.append('git is not on this machine: the rows of the source tree are left out')
        return []
    source = Source(bench)
    rows = {title: Row(title, 'ms', LESS, wsmfs_native=aim, wsmfs_peer=1.0) for title, aim, _, _ in TREE_STEPS if title}
    for n in range(bench.rounds):
        for title, _, rest, line in TREE_STEPS:
            for v in bench.turns(n):
                if rest:
                    settle()
                tree_step(bench, v, title, line.format(src=source.src, tar=source.tar), rows.get(title))
        bench.say(f'source tree, round {n + 1}')
    return list(rows.values())


# ── several clients ─────────────────────────────────────────────────────────────────────────

CLIENTS = (1, 4, 8)
CLIENT_PHASES = {'stat': 'stat of a known file', 'ask': 'stat that asks the file system', 'open': 'open + read + close'}
CLIENT_FILES = 1000


def measure_clients(bench, quick):
    program = compile_smallfiles(bench.top)
    counts = CLIENTS[:2] if quick else CLIENTS
    rows = {(p, c): Row(f'{t}, {c} client{"s" * (c > 1)}', 'thousand/s', MORE)
            for p, t in CLIENT_PHASES.items() for c in counts}
    for v in bench.variants:
        os.mkdir(f'{v.dir}/small')
        for phase in ('mkdir', 'create', 'stat', 'stat', 'open'):
            bench.run([program, phase, f'{v.dir}/small', str(CLIENT_FILES)])
    for n in range(bench.rounds):
        for (phase, clients), row in rows.items():
            for v in bench.turns(n):
                ms = bench.sizes.clients_ms
                _, text = bench.run([program, 'clients', phase, f'{v.dir}/small', str(CLIENT_FILES), str(clients),
                                     str(ms)])
                row.add(v.name, int(text) / ms)
        bench.say(f'clients, round {n + 1}')
    for v in bench.variants:
        shutil.rmtree(f'{v.dir}/small')
    return [*rows.values(), *growth(rows, counts)]


def growth(rows, counts):
    """How often the throughput of one client."""
    more = []
    for phase, title in CLIENT_PHASES.items():
        for c in counts[1:]:
            row = Row(f'{title}, {c} clients ÷ 1', '× one', MORE)
            for name, values in rows[phase, c].values.items():
                for one, many in zip(rows[phase, counts[0]].values[name], values):
                    row.add(name, many / one)
            more.append(row)
    return more


# ── sessions that share ─────────────────────────────────────────────────────────────────────

def measure_sharing(bench, quick):
    """One session unpacks over a tree that other sessions of the same workspace have cached."""
    source = Source(bench)
    few, many = 1, 4 if quick else 20
    kinds = {few: Row('tar x, cached by 1 other session', 'ms', LESS),
             many: Row(f'tar x, cached by {many} other sessions', 'ms', LESS)}
    ratio = Row(f'{many} others ÷ 1 other', '×', LESS, absolute=2.0)
    variants = [v for v in bench.variants if isinstance(v, Wsmfs)]
    places = {(v.name, k): [v.session(f'of{k}', f's{i}') for i in range(k + 1)] for v in variants for k in kinds}
    for sessions in places.values():
        bench.run(['tar', 'xf', source.tar, '-C', sessions[0]])
    for n in range(bench.rounds):
        for v in variants[n % len(variants):] + variants[:n % len(variants)]:
            for k in kinds if n % 2 else reversed(kinds):
                kinds[k].add(v.name, unpack_over(bench, source, places[v.name, k]))
            ratio.add(v.name, kinds[many].values[v.name][-1] / kinds[few].values[v.name][-1])
        bench.say(f'sharing, round {n + 1}')
    return [*kinds.values(), ratio]


def unpack_over(bench, source, sessions):
    for s in sessions[1:]:
        bench.run('find . -type f -size +100k | wc -l', s)
    settle()
    took_s, _ = bench.run(['tar', 'xf', source.tar, '-C', sessions[0]])
    return took_s * 1000


GROUPS = {'fio': measure_fio, 'small': measure_small, 'tree': measure_tree, 'clients': measure_clients,
          'sharing': measure_sharing}
