# SPDX-License-Identifier: Apache-2.0
"""What is measured of workspaces that are containers, and beside what. All ways of a row take turns,
another one first in each round."""

import concurrent.futures
import contextlib
import json
import os
import shutil
import statistics
import time

import commands
from dockerapi import IMAGE, TRUE, WAIT, Api, DockerMount, StallingProxy, cli, run_quietly
from machine import compile_c
from measures import PASSES, settle, write_file
from report import as_markdown, number, replace_between
from variants import Trouble, Wsmfs

RUN, CREATE, EXEC = 'docker run --rm', 'docker run -d', 'docker exec'
API_EXEC, API_CREATE = 'exec by the API', 'create and start by the API'
RM, API_RM = 'docker rm -f', 'remove by the API, forced'
CMD, ARGV, WSM = 'wsmfs, cmd', 'wsmfs, argv', 'wsm exec'
WSMFS, LOCAL = 'wsmfs', 'wsmfs, local'
ALONE, BESIDE = 'nobody waits', 'others wait for a pull'
IMAGE_BODY = {'Image', 'Env', 'WorkingDir', 'User', 'Healthcheck', 'HostConfig'}
CLOCK_OF_PROCESS = 2  # CPUCLOCK_SCHED


class Figures(commands.Figures):
    """An aim is the figure (`aim`) or its ratio to `base` (`aim_ratio`), which is at most or at least that."""

    ways = (RUN, CREATE, EXEC, API_EXEC, API_CREATE, RM, API_RM, LOCAL, CMD, ARGV, WSM, WSMFS, ALONE, BESIDE)
    ours = (CMD, ARGV, WSM, WSMFS, BESIDE)

    def reached(self, value, aim):
        return value >= aim if self.more else value <= aim

    def met(self, way):
        if way not in self.ours or way not in self.values:
            return ''
        ratio = self.ratio(way)
        if self.aim is not None:
            return 'yes' if self.reached(self.median(way), self.aim) else 'no'
        if self.aim_ratio is not None and ratio is not None:
            return 'yes' if self.reached(ratio, self.aim_ratio) else 'no'
        return ''

    def aim_text(self):
        sign = '≥' if self.more else '≤'
        if self.aim is not None:
            return f'{sign} {self.aim:g}'
        return '' if self.aim_ratio is None else f'{sign} {self.aim_ratio:g} of {self.base}'


def spread(values):
    """The quarters' limits."""
    if len(values) < 2:
        return ''
    low, _, high = statistics.quantiles(values, n=4, method='inclusive')
    return f'{number(low)} to {number(high)}'


def table(rows):
    """Cells of text, the first line the titles: a line for each way of each row."""
    lines = [['', 'by', 'unit', 'median', 'middle half', 'ratio', 'aim', 'met']]
    for r in rows:
        for way in (w for w in r.ways if w in r.values):
            ratio = r.ratio(way)
            lines.append([r.title, way, r.unit, number(r.median(way)), spread(r.values[way]),
                          f'{number(ratio)} of {r.base}' if ratio is not None else '',
                          r.aim_text() if way in r.ours else '', r.met(way)])
    return lines


def write_document(path, groups, text):
    with open(path, encoding='utf-8') as f:
        document = f.read()
    for name, rows in groups.items():
        document = replace_between(document, name, f'{text}\n\n{as_markdown(table(rows))}')
    with open(path, 'w', encoding='utf-8') as f:
        f.write(document)


def timed(action):
    """Milliseconds."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


class Bench:
    """What the groups share."""

    def __init__(self, top, stack, engine, programs, sizes, rounds, say):
        self.top = top
        self.stack = stack  # what ends with the benchmark
        self.engine = engine
        self.program, self.wsm = programs
        self.sizes = sizes
        self.rounds = rounds
        self.say = say
        self.notes = []
        self.api = Api(engine.socket)
        self.client = compile_c('jobclient.c', top, '-lpthread')
        self.numbers = iter(range(1 << 30))
        self.local = self.start(Wsmfs('local', top, self.program))
        self.docker = self.mount('docker', engine.host)
        self.proxy = StallingProxy(f'{top}/proxy.sock', engine.socket)
        stack.callback(self.proxy.stop)
        self.behind_proxy = self.mount('proxy', f'unix://{self.proxy.path}')

    def start(self, mount):
        self.stack.callback(mount.stop)
        return mount.start()

    def mount(self, name, host, options=()):
        return self.start(DockerMount(name, self.top, self.program, host, options))

    def fresh(self):
        """An agent that nobody has named."""
        return f'a{next(self.numbers)}'

    def turns(self, n_round, ways):
        ways = list(ways)
        k = n_round % len(ways)
        return ways[k:] + ways[:k]

    def client_ms(self, *words):
        return statistics.median(int(line) / 1e6 for line in
                                 run_quietly([self.client, *map(str, words)]).split()[1:])


# ── commands ────────────────────────────────────────────────────────────────────────────────

def measure_commands(bench):
    row = Figures('`true` in a container that runs', 'ms', False, EXEC, aim_ratio=0.05)
    agent = bench.fresh()
    path = bench.docker.path(agent)
    os.listdir(path)
    bench.docker.ctl(agent, 'provision')
    container = bench.docker.sandbox(agent)
    each, slow = bench.sizes.each, bench.sizes.slow
    spawn = ['spawn', slow, 1]
    how = {
        RUN: lambda: bench.client_ms(*spawn, *cli(bench.engine, 'run', '--rm', '--network=none', IMAGE, *TRUE)),
        EXEC: lambda: bench.client_ms(*spawn, *cli(bench.engine, 'exec', container, *TRUE)),
        API_EXEC: lambda: statistics.median(timed(lambda: bench.api.execute(container, TRUE)) for _ in range(slow)),
        CMD: lambda: bench.client_ms('jobs', f'{path}/.wsm/jobs', each, 1, 'cmd', ' '.join(TRUE)),
        ARGV: lambda: bench.client_ms('jobs', f'{path}/.wsm/jobs', each, 1, 'argv', json.dumps(TRUE)),
        WSM: lambda: bench.client_ms('spawn', each, 1, bench.wsm, 'exec', path, '--', *TRUE),
    }
    for n in range(bench.rounds):
        for way in bench.turns(n, how):
            row.add(way, how[way]())
        bench.say(f'commands, round {n + 1}')
    bench.docker.ctl(agent, 'close')
    return [row]


# ── a cold session ──────────────────────────────────────────────────────────────────────────

def measure_sessions(bench):
    rows = {
        'ls': Figures('first `ls` of a cold session', 'ms', False, LOCAL, aim=5),
        'job': Figures('first command in a cold session', 'ms', False, RUN),
        'up': Figures('until a command could run', 'ms', False, API_CREATE),
        'more': Figures('the same, more than create and start by the API take', 'ms', False, aim=50),
        'down': Figures('the container is ended and removed', 'ms', False, API_RM),
    }
    like = body_like_ours(bench)
    for n in range(bench.rounds):
        for _ in range(bench.sizes.cold):
            for way in bench.turns(n, (LOCAL, WSMFS, API_CREATE, CREATE, RUN)):
                COLD[way](bench, rows, like)
        bench.say(f'cold sessions, round {n + 1}')
    for bare, ours in zip(rows['up'].values[API_CREATE], rows['up'].values[WSMFS]):
        rows['more'].add(WSMFS, ours - bare)
    return list(rows.values())


def body_like_ours(bench):
    """What a container of ours is made from, but for the guest: so are those that are compared with it."""
    agent = bench.fresh()
    os.listdir(bench.docker.path(agent))
    bench.docker.ctl(agent, 'provision')
    found = bench.api.call('GET', f'/containers/{bench.docker.sandbox(agent)}/json')
    body = {k: v for k, v in found['Config'].items() if k in IMAGE_BODY}
    body.update(HostConfig=found['HostConfig'], Entrypoint=WAIT[:1], Cmd=WAIT[1:])
    return body


def cold_local(bench, rows, like):
    del like
    path = f'{bench.local.mnt}/bench/{bench.fresh()}/s1'
    rows['ls'].add(LOCAL, timed(lambda: os.listdir(path)))


def first_job(path):
    os.mkdir(f'{path}/.wsm/jobs/j')
    with open(f'{path}/.wsm/jobs/j/cmd', 'w', encoding='utf-8') as f:
        f.write(' '.join(TRUE))
    with open(f'{path}/.wsm/jobs/j/exit', encoding='utf-8') as f:
        if f.read() != '0\n':
            raise Trouble('a first job failed')


def cold_wsmfs(bench, rows, like):
    del like
    agent, other = bench.fresh(), bench.fresh()
    path = bench.docker.path(agent)
    ls = timed(lambda: os.listdir(path))
    rows['ls'].add(WSMFS, ls)
    rows['up'].add(WSMFS, ls + timed(lambda: bench.docker.ctl(agent, 'provision')))
    rows['down'].add(WSMFS, timed(lambda: bench.docker.ctl(agent, 'close')))
    rows['job'].add(WSMFS, timed(lambda: first_job(bench.docker.path(other))))
    bench.docker.ctl(other, 'close')


def cold_api(bench, rows, like):
    made = []
    rows['up'].add(API_CREATE, timed(lambda: made.append(bench.api.create_and_start(like))))
    rows['down'].add(API_RM, timed(lambda: bench.api.remove(made[0])))


def cold_cli(bench, rows, like):
    del like
    made = []
    rows['up'].add(CREATE, timed(lambda: made.append(run_quietly(
        cli(bench.engine, 'run', '-d', '--network=none', IMAGE, *WAIT)))))
    rows['down'].add(RM, timed(lambda: run_quietly(cli(bench.engine, 'rm', '-f', made[0]))))


def cold_run(bench, rows, like):
    del like
    rows['job'].add(RUN, timed(lambda: run_quietly(cli(bench.engine, 'run', '--rm', '--network=none', IMAGE, *TRUE))))


COLD = {LOCAL: cold_local, WSMFS: cold_wsmfs, API_CREATE: cold_api, CREATE: cold_cli, RUN: cold_run}


# ── while others wait ───────────────────────────────────────────────────────────────────────

def measure_others(bench):
    """The engine is reached through a proxy in both cases."""
    mount = bench.behind_proxy
    rows = {
        'ls': Figures('first `ls` of a cold session', 'ms', False, ALONE, aim_ratio=1.1),
        'up': Figures('until a command could run', 'ms', False, ALONE, aim_ratio=1.1),
        'job': Figures('a command', 'ms', False, ALONE, aim_ratio=1.1),
    }
    for n in range(bench.rounds):
        for way in bench.turns(n, (ALONE, BESIDE)):
            with contextlib.ExitStack() as stack:
                if way == BESIDE:
                    stack.callback(wait_for_pulls(bench, mount))
                cold_beside(bench, mount, rows, way)
        bench.say(f'beside others, round {n + 1}')
    return list(rows.values())


def wait_for_pulls(bench, mount):
    """Sessions whose image is being pulled, for ever; how to end that."""
    agents = [bench.fresh() for _ in range(bench.sizes.waiting)]
    bench.proxy.stall([mount.sandbox(agent) for agent in agents])
    before = bench.proxy.refused()
    for agent in agents:
        os.listdir(mount.path(agent))
    end = time.monotonic() + 60
    while bench.proxy.refused() - before < len(agents) or not bench.proxy.pulls():
        if time.monotonic() > end:
            raise Trouble('the pulls did not begin')
        time.sleep(0.01)

    def over():
        for agent in agents:
            mount.ctl(agent, 'close')
        bench.proxy.stall(())
    return over


def cold_beside(bench, mount, rows, way):
    found = {'ls': [], 'up': [], 'job': []}
    for _ in range(bench.sizes.cold):
        agent = bench.fresh()
        path = mount.path(agent)
        found['ls'].append(timed(lambda p=path: os.listdir(p)))
        found['up'].append(found['ls'][-1] + timed(lambda a=agent: mount.ctl(a, 'provision')))
        found['job'].append(bench.client_ms('jobs', f'{path}/.wsm/jobs', bench.sizes.slow, 1, 'cmd', ' '.join(TRUE)))
        mount.ctl(agent, 'close')
    for name, values in found.items():
        rows[name].add(way, statistics.median(values))


# ── files ───────────────────────────────────────────────────────────────────────────────────

def measure_files(bench):
    """A container's session beside one of the local backend."""
    agent = bench.fresh()
    places = {LOCAL: f'{bench.local.mnt}/bench/{agent}/s1', WSMFS: bench.docker.path(agent)}
    os.listdir(places[WSMFS])
    bench.docker.ctl(agent, 'provision')
    rows = small_files(bench, places) + data(bench, places)
    bench.docker.ctl(agent, 'close')
    return rows


def small_files(bench, places):
    program, n_files = compile_c('smallfiles.c', bench.top), bench.sizes.files
    rows = {title: Figures(title, 'µs', False, LOCAL, aim_ratio=1.1) for _, title in PASSES if title}
    for n in range(bench.rounds):
        for place in places.values():
            os.mkdir(f'{place}/small')
        settle()
        for phase, title in PASSES:
            for way in bench.turns(n, places):
                ns = int(run_quietly([program, phase, f'{places[way]}/small', str(n_files)]))
                if title:
                    rows[title].add(way, ns / n_files / 1000)
        for place in places.values():
            os.rmdir(f'{place}/small')
        bench.say(f'files, round {n + 1}')
    return list(rows.values())


def data(bench, places):
    if not shutil.which('fio'):
        bench.notes.append('fio is not on this machine: its rows are left out')
        return []
    rows = {(bs, what): Figures(f'{bs} random {what}', 'MiB/s', True, LOCAL, aim_ratio=0.9)
            for bs in ('4k', '128k') for what in ('read', 'write')}
    for place in places.values():
        write_file(f'{place}/fio', bench.sizes.fio_mib << 20)
    for n in range(bench.rounds):
        for (bs, what), row in rows.items():
            for way in bench.turns(n, places):
                settle()
                row.add(way, fio(bench, f'{places[way]}/fio', bs, what))
    for place in places.values():
        os.unlink(f'{place}/fio')
    return list(rows.values())


def fio(bench, file, bs, what):
    text = run_quietly(['fio', '--name=bench', f'--filename={file}', f'--rw=rand{what}', f'--bs={bs}',
                        f'--size={bench.sizes.fio_mib}m', '--ioengine=psync', '--invalidate=0', '--time_based',
                        f'--runtime={bench.sizes.fio_ms}ms', '--thread', '--norandommap', '--gtod_reduce=1', '--eta=never',
                        '--output-format=json'])
    return json.loads(text[text.index('{'):])['jobs'][0][what]['bw_bytes'] / (1 << 20)


# ── many ────────────────────────────────────────────────────────────────────────────────────

def field(pid, name):
    with open(f'/proc/{pid}/status', encoding='ascii', errors='replace') as f:
        return int(next(line for line in f if line.startswith(f'{name}:')).split()[1])


def cpu_ms(pids):
    """What processes have used, threads that have ended too: clock_getcpuclockid(3)."""
    total_ns = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total_ns += time.clock_gettime_ns((~pid << 3) | CLOCK_OF_PROCESS)
    return total_ns / 1e6


def ticks(pid):
    with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as f:
        return sum(map(int, f.read().rsplit(')', 1)[1].split()[11:13]))


def switches(pids):
    """Of each thread."""
    found = {}
    for pid in pids:
        for task in os.listdir(f'/proc/{pid}/task'):
            with contextlib.suppress(OSError), open(f'/proc/{pid}/task/{task}/status', encoding='ascii', errors='replace') as f:
                found[task] = sum(int(line.split()[1]) for line in f if 'ctxt_switches' in line)
    return found


def come_to_rest(pids, rest_s):
    """What was started a moment ago ends first: threads of wsmfs wait some seconds for more to do, and a connection is
    looked after once more. True as soon as nothing has run for so long."""
    for _ in range(3):
        before = cpu_ms(pids)
        time.sleep(rest_s)
        if cpu_ms(pids) == before:
            return True
    return False


def engines_own(bench):
    """dockerd and what it has started outside of containers."""
    daemon, found = bench.engine.proc.pid, set()
    for pid in filter(str.isdigit, os.listdir('/proc')):
        with contextlib.suppress(OSError):
            with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as f:
                parent = int(f.read().rsplit(')', 1)[1].split()[1])
            with open(f'/proc/{pid}/cmdline', 'rb') as f:
                words = f.read().split(b'\0')
            shim = b'shim' in words[0] and any(bench.engine.top.encode() in word for word in words)
            if int(pid) == daemon or parent == daemon or shim:
                found.add(int(pid))
    return found


def measure_many(bench):
    """A mount of its own; each figure once."""
    count, idle_s = bench.sizes.many, bench.sizes.idle_s
    mount = bench.mount('many', bench.engine.host, ['keep_on_exit', 'ttl=1h'])
    rows = [Figures(f'{count} sessions at once, until a command has run in each', 's', False),
            Figures(f'memory of wsmfs with {count} live containers and their jobs', 'KiB', False),
            Figures('the same, more than without, for each', 'KiB', False),
            Figures('threads of wsmfs', '', False),
            Figures(f'CPU of wsmfs in {idle_s} s of rest', 'ms', False),
            Figures('the same in ticks of the kernel', '', False, aim=0),
            Figures('its switches of threads', '', False),
            Figures('memory of a guest', 'KiB', False),
            Figures(f'CPU of the {count} guests in {idle_s} s of rest', 'ms', False, aim=0),
            Figures('their switches of threads', '', False),
            Figures(f'CPU of the engine in {idle_s} s of rest, for comparison', 'ms', False)]
    os.listdir(f'{mount.mnt}/bench')
    before_kib = field(mount.proc.pid, 'VmRSS')
    agents = [bench.fresh() for _ in range(count)]
    took_ms = timed(lambda: all_at_once(mount, agents))
    guests = [found['State']['Pid'] for found in
              (bench.api.call('GET', f'/containers/{mount.sandbox(a)}/json') for a in agents)]
    own = engines_own(bench)
    ours = [mount.proc.pid]
    if not come_to_rest(ours + guests, bench.sizes.rest_s):
        bench.notes.append(f'wsmfs and its guests did not come to rest at {count} containers')

    def seen():
        return cpu_ms(ours), ticks(ours[0]), switches(ours), cpu_ms(guests), switches(guests), cpu_ms(own)

    before = seen()
    time.sleep(idle_s)
    rest = [b - a if not isinstance(a, dict) else sum(n - a.get(task, 0) for task, n in b.items())
            for a, b in zip(before, seen())]
    kib = field(mount.proc.pid, 'VmRSS')
    found = [took_ms / 1000, kib, (kib - before_kib) / count, field(mount.proc.pid, 'Threads'), *rest[:3],
             statistics.median(field(pid, 'VmRSS') for pid in guests), *rest[3:]]
    for row, value in zip(rows, found):
        row.add(WSMFS, value)
    bench.say(f'{count} containers')
    return rows


def all_at_once(mount, agents):
    def up(agent):
        os.listdir(mount.path(agent))
        first_job(mount.path(agent))

    with concurrent.futures.ThreadPoolExecutor(len(agents)) as pool:
        list(pool.map(up, agents))


GROUPS = {'docker commands': measure_commands, 'docker sessions': measure_sessions, 'docker beside others': measure_others,
          'docker files': measure_files, 'docker at scale': measure_many}
