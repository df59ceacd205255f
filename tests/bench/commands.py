# SPDX-License-Identifier: Apache-2.0
"""The ways of running a command that are compared, and what is measured of each. All of them take
turns, another one first in each round."""

import contextlib
import os
import shutil
import statistics
import subprocess
import time

from machine import compile_c
from report import as_markdown, number, replace_between
from variants import Trouble, Wsmfs, die_with_parent

SPAWN, SHELL, BWRAP, DOCKER, PIPE = 'posix_spawn', 'sh -c', 'bwrap', 'docker exec', 'pipe'
OFF, CONFINED = 'wsmfs, confine=off', 'wsmfs'
WAYS = (SPAWN, SHELL, BWRAP, DOCKER, PIPE, OFF, CONFINED)
TRUE = '/bin/true'
AT_ONCE = 64
BWRAP_WORDS = ['bwrap', '--ro-bind', '/', '/', '--dev', '/dev', '--proc', '/proc', '--unshare-all',
               '--die-with-parent']
IMAGE = 'wsmfs-bench-true'
STEP_TIMEOUT_S = 300


class Figures:
    """One thing that was measured: a figure a round for each way. An aim is met when the figure reaches `aim`,
    or its ratio to `base` reaches `aim_ratio`."""

    def __init__(self, title, unit, more, base=None, aim=None, aim_ratio=None):
        self.title = title
        self.unit = unit
        self.more = more  # is better
        self.base = base
        self.aim = aim
        self.aim_ratio = aim_ratio
        self.values = {}

    def add(self, way, value):
        self.values.setdefault(way, []).append(value)

    def median(self, way):
        return statistics.median(self.values[way]) if way in self.values else None

    def ratio(self, way):
        """The median of the rounds' ratios: both of a ratio had the same weather."""
        if self.base is None or way == self.base or way not in self.values or self.base not in self.values:
            return None
        return statistics.median(a / b for a, b in zip(self.values[way], self.values[self.base]) if b)

    def met(self, way):
        if self.aim is None or way not in (OFF, CONFINED) or way not in self.values:
            return ''
        reached = self.median(way) >= self.aim if self.more else self.median(way) <= self.aim
        ratio = self.ratio(way)
        return 'yes' if reached or (self.aim_ratio and ratio is not None and ratio >= self.aim_ratio) else 'no'

    def aim_text(self):
        if self.aim is None:
            return ''
        return f'{"≥" if self.more else "≤"} {self.aim:g}' + (f' or {self.aim_ratio:g} of {self.base}' if self.aim_ratio
                                                              else '')

    def __str__(self):
        return f'{self.title}: ' + ', '.join(f'{w} {number(self.median(w))}' for w in WAYS if w in self.values) + \
            f' {self.unit}'

    def as_json(self):
        return {'title': self.title, 'unit': self.unit, 'aim': self.aim_text(), 'values': self.values,
                'ratios': {w: self.ratio(w) for w in self.values}, 'met': {w: self.met(w) for w in self.values}}


def table(rows):
    """Cells of text, the first line the titles: a line for each way of each row."""
    lines = [['', 'by', 'unit', 'median', 'ratio', 'aim', 'met']]
    for r in rows:
        for way in (w for w in WAYS if w in r.values):
            ratio = r.ratio(way)
            ours = way in (OFF, CONFINED)
            lines.append([r.title, way, r.unit, number(r.median(way)),
                          f'{number(ratio)} of {r.base}' if ratio is not None else '',
                          r.aim_text() if ours else '', r.met(way)])
    return lines


def write_document(path, weather, groups, text):
    with open(path, encoding='utf-8') as f:
        document = f.read()
    for name, rows in groups.items():
        content = f'{text}\n\n{as_markdown(table(rows))}'
        document = replace_between(document, f'{name}, {weather}', content)
    with open(path, 'w', encoding='utf-8') as f:
        f.write(document)


# ── what runs commands ──────────────────────────────────────────────────────────────────────

def run(words, **more):
    """What a command printed."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, errors='replace',
                          timeout=STEP_TIMEOUT_S, preexec_fn=die_with_parent(), **more)
    if done.returncode != 0:
        raise Trouble(f'{words} ended with {done.returncode}: {(done.stdout + done.stderr)[-800:]}')
    return done.stdout


def works(words, timeout_s=30):
    try:
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=timeout_s,
                              preexec_fn=die_with_parent()).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


class Container:
    """A container that only waits, of an image made here: nothing is fetched."""

    def __init__(self, top):
        root = f'{top}/image'
        os.mkdir(root)
        for name, body in (('true', 'return 0;'), ('wait', 'for (;;) pause();')):
            with open(f'{top}/{name}.c', 'w', encoding='ascii') as f:
                f.write(f'#include <unistd.h>\nint main(void) {{ {body} }}\n')
            run(['cc', '-O2', '-static', '-o', f'{root}/{name}', f'{top}/{name}.c'])
        run(['tar', 'cf', f'{top}/image.tar', '-C', root, '.'])
        run(['docker', 'import', f'{top}/image.tar', IMAGE])
        self.id = run(['docker', 'run', '-d', '--network=none', IMAGE, '/wait']).strip()

    def words(self):
        return ['docker', 'exec', self.id, '/true']

    def stop(self):
        works(['docker', 'rm', '-f', self.id])
        works(['docker', 'rmi', '-f', IMAGE])


class Jobs(Wsmfs):
    """A mount whose session has run a job: its sandbox is warm."""

    def place(self):
        path = super().place()
        self.jobs = f'{path}/.wsm/jobs'
        self.guest = self._find_guest()
        return path

    def _run(self, name, command):
        os.mkdir(f'{self.jobs}/{name}')
        with open(f'{self.jobs}/{name}/cmd', 'w', encoding='utf-8') as f:
            f.write(command)
        with open(f'{self.jobs}/{name}/exit', encoding='utf-8') as f:
            end = f.read().strip()
        with open(f'{self.jobs}/{name}/stdout', encoding='utf-8') as f:
            out = f.read()
        os.rmdir(f'{self.jobs}/{name}')
        if end != '0':
            raise Trouble(f'{self.name}: a job ended with {end}')
        return out

    def _find_guest(self):
        """The process, by what its job sees of it: the namespace that it is in, and its number there."""
        space, number_inside = self._run('find', 'readlink /proc/self/ns/pid; echo $PPID').split()
        for pid in filter(str.isdigit, os.listdir('/proc')):
            with contextlib.suppress(OSError):
                with open(f'/proc/{pid}/status', encoding='ascii', errors='replace') as f:
                    status = dict(line.split(':\t', 1) for line in f.read().splitlines() if ':\t' in line)
                if os.readlink(f'/proc/{pid}/ns/pid') == space and status['NSpid'].split()[-1] == number_inside:
                    return int(pid)
        raise Trouble(f'{self.name}: its guest cannot be found')

    def guest_kib(self):
        with open(f'/proc/{self.guest}/status', encoding='ascii', errors='replace') as f:
            return int(next(line for line in f if line.startswith('VmRSS:')).split()[1])

    def time_in_python(self, n):
        """Milliseconds of each of n jobs, by plain file calls."""
        took = []
        for i in range(n):
            name = f'{self.jobs}/p{i}'
            start = time.perf_counter()
            os.mkdir(name)
            with open(f'{name}/cmd', 'w', encoding='utf-8') as f:
                f.write(TRUE)
            with open(f'{name}/exit', encoding='utf-8') as f:
                end = f.read()
            took.append((time.perf_counter() - start) * 1000)
            os.rmdir(name)
            if end != '0\n':
                raise Trouble(f'{self.name}: a job ended with {end}')
        return took


# ── the groups ──────────────────────────────────────────────────────────────────────────────

class Bench:
    """What the groups share: the ways that there are, the sizes, a place for helpers' files."""

    def __init__(self, top, mounts, wsm, sizes, rounds, say):
        self.top = top
        self.mounts = mounts
        self.wsm = wsm
        self.sizes = sizes
        self.rounds = rounds
        self.say = say
        self.notes = []
        self.client = compile_c('jobclient.c', top, '-lpthread')
        self.container = None
        self.others = {SPAWN: [TRUE], SHELL: ['sh', '-c', TRUE]}
        self._find_bwrap()
        self._find_docker()

    def _find_bwrap(self):
        if works([*BWRAP_WORDS, TRUE]):
            self.others[BWRAP] = [*BWRAP_WORDS, TRUE]
        else:
            self.notes.append('bwrap starts nothing here and is left out')

    def _find_docker(self):
        if not shutil.which('docker') or not works(['docker', 'info'], 15):
            self.notes.append('no docker engine answers, so `docker exec` is left out')
            return
        self.container = Container(self.top)
        self.others[DOCKER] = self.container.words()

    def stop(self):
        if self.container:
            self.container.stop()

    def turns(self, n_round, ways):
        ways = list(ways)
        k = n_round % len(ways)
        return ways[k:] + ways[:k]

    def times(self, *words):
        """Runs the client: (commands a second, milliseconds of each)."""
        found = [int(line) for line in run([self.client, *map(str, words)]).split()]
        return (len(found) - 1) / found[0] * 1e9, [ns / 1e6 for ns in found[1:]]

    def spawn(self, n, at_once, words):
        return self.times('spawn', n, at_once, *words)

    def job(self, way, n, at_once, file='cmd', text=TRUE):
        return self.times('jobs', self.mounts[way].jobs, n, at_once, file, text)


ARGV = f'["{TRUE}"]'


def count_for(bench, way):
    return bench.sizes.slow if way in (BWRAP, DOCKER) else bench.sizes.each


def one(bench, way, how):
    """The median time of one command, ms."""
    n = count_for(bench, way)
    if way in bench.others:
        return statistics.median(bench.spawn(n, 1, bench.others[way])[1])
    mount = bench.mounts[way]
    if how == 'python':
        return statistics.median(mount.time_in_python(n))
    if how == 'wsm':
        return statistics.median(bench.spawn(n, 1, [bench.wsm, 'exec', mount.dir, '--', TRUE])[1])
    return statistics.median(bench.job(way, n, 1, how, ARGV if how == 'argv' else TRUE)[1])


def measure_latency(bench):
    rows = {
        'cmd': Figures('mkdir, write cmd, read exit', 'ms', False, SPAWN, aim=3),
        'argv': Figures('the same with argv, no shell', 'ms', False, SPAWN, aim=3),
        'python': Figures('the same with cmd, in Python', 'ms', False, aim=3),
        'wsm': Figures('wsm exec', 'ms', False, aim=3),
    }
    for n in range(bench.rounds):
        for how, row in rows.items():
            for way in bench.turns(n, [*(bench.others if how == 'cmd' else [SPAWN] if row.base else []), *bench.mounts]):
                row.add(way, one(bench, way, how))
        bench.say(f'latency, round {n + 1}')
    return list(rows.values())


def measure_rate(bench):
    rows = {
        'cmd': Figures(f'{AT_ONCE} at a time, cmd', 'a second', True, SPAWN, aim=1000, aim_ratio=0.5),
        'argv': Figures(f'{AT_ONCE} at a time, argv', 'a second', True, SPAWN, aim=1000, aim_ratio=0.5),
    }
    for n in range(bench.rounds):
        for how, row in rows.items():
            for way in bench.turns(n, [*(bench.others if how == 'cmd' else [SPAWN]), *bench.mounts]):
                many = count_for(bench, way) * bench.sizes.many
                if way in bench.others:
                    row.add(way, bench.spawn(many, AT_ONCE, bench.others[way])[0])
                else:
                    row.add(way, bench.job(way, many, AT_ONCE, how, ARGV if how == 'argv' else TRUE)[0])
        bench.say(f'rate, round {n + 1}')
    return list(rows.values())


def printer(mib):
    return f'dd if=/dev/zero bs=128k count={mib * 8} status=none'


def through_pipe(bench, mib):
    return run(['sh', '-c', f'{printer(mib)} | {bench.client} read -'])


def through_job(bench, way, mib):
    jobs = bench.mounts[way].jobs
    os.mkdir(f'{jobs}/out')
    with open(f'{jobs}/out/cmd', 'w', encoding='utf-8') as f:
        f.write(f'exec {printer(mib)}')
    text = run([bench.client, 'read', f'{jobs}/out/stdout'])
    with open(f'{jobs}/out/exit', encoding='utf-8') as f:
        f.read()
    os.rmdir(f'{jobs}/out')
    return text


def measure_output(bench):
    mib = bench.sizes.mib
    row = Figures(f'{mib} MiB in pieces of 128 KiB', 'GB/s', True, PIPE, aim=1, aim_ratio=0.5)
    for n in range(bench.rounds):
        for way in bench.turns(n, [PIPE, *bench.mounts]):
            n_bytes, ns = map(int, (through_pipe(bench, mib) if way == PIPE else through_job(bench, way, mib)).split())
            if n_bytes != mib << 20:
                raise Trouble(f'{way}: {n_bytes} bytes came of {mib << 20}')
            row.add(way, n_bytes / ns)
        bench.say(f'output, round {n + 1}')
    return [row]


def measure_memory(bench):
    """After all the others; what grew has been given back by then."""
    row = Figures('resident, idle', 'KiB', False, aim=1024)
    for _ in range(bench.rounds):
        time.sleep(0.3)
        for way, mount in bench.mounts.items():
            row.add(way, mount.guest_kib())
    return [row]


GROUPS = {'job latency': measure_latency, 'job rate': measure_rate, 'job output': measure_output,
          'guest memory': measure_memory}
