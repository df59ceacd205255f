# SPDX-License-Identifier: Apache-2.0
"""Jobs in numbers, and daemons that die while they run."""

import asyncio
import contextlib
import hashlib
import os
import random
import signal
import time

import pytest

from harness import Child, in_child, read, sandboxes_of, wait_for, write
from jobs import Job, job, opened

pytestmark = [pytest.mark.root, pytest.mark.slow]


def kill_daemon(d):
    os.kill(d.pid, signal.SIGKILL)
    d.proc.wait(60)
    d.proc = None


@pytest.mark.timeout(600)
def test_a_thousand_jobs_run_at_once_in_one_workspace(mount):
    s = mount().session()
    made = [job(s, f'j{i}').start(f'echo {i}; until [ -e go ]; do sleep 1; done; echo {i}') for i in range(1000)]
    wait_for(lambda: s.status()['running_jobs'] == 1000, 200)
    wait_for(lambda: all(j.status()['stdout_bytes'] for j in made), 200)
    write(s / 'go', '')
    for i, j in enumerate(made):
        assert j.exit(200) == '0'
        assert j.text('stdout') == f'{i}\n{i}\n'


@pytest.mark.timeout(600)
@pytest.mark.parametrize('how', ['kill', 'detach'])
def test_running_jobs_survive_twenty_ends_of_the_daemon(mount, how):
    d = mount()
    s = d.session()
    script = ('echo {n} >> starts; for i in $(seq 1 4000); do echo "{n} line $i"; '
              '[ $((i % 400)) = 0 ] && sleep 0.5; done; exit 5')
    names = [f'j{i}' for i in range(20)]
    for name in names:
        job(s, name).start(script.format(n=name))
    for name in names:
        Job(s, name).wait_state('running', 'ended')
    for _ in range(20):
        time.sleep(random.random() * 0.2)
        if how == 'kill':
            kill_daemon(d)
        else:
            d.stop(expect_exit=75, by=signal.SIGUSR1)
        d.start()
    for name in names:
        j = Job(s, name)
        assert j.exit(200) == '5', name
        assert j.text('stdout') == ''.join(f'{name} line {i}\n' for i in range(1, 4001)), name
    assert sorted(read(s / 'starts').split()) == sorted(names)


def memory_kib(pid):
    return next(int(line.split()[1]) for line in read(f'/proc/{pid}/status').splitlines() if line.startswith('VmRSS'))


def guests_of(d):
    found = []
    for pid in sandboxes_of(d.top):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if read(f'/proc/{pid}/comm') == 'wsm-guest\n':
                found.append(pid)
    return found


def read_slowly(j, size, bytes_s, watched):
    """Reads the whole of `stdout` at that rate; the most memory that each of the processes had, in KiB."""
    most = dict.fromkeys(watched, 0)
    total, begin = 0, time.monotonic()
    with opened(j / 'stdout', os.O_RDONLY) as fd:
        while piece := os.read(fd, 1 << 20):
            total += len(piece)
            assert piece.count(b'x') == len(piece)
            if total % (16 << 20) < (1 << 20):
                for pid in watched:
                    most[pid] = max(most[pid], memory_kib(pid))
            time.sleep(max(0, total / bytes_s - (time.monotonic() - begin)))
    assert total == size
    return most


@pytest.mark.timeout(600)
@pytest.mark.parametrize('size, bytes_s', [(2 << 30, 400e6), (10 ** 9, 20e6)])
def test_gigabytes_are_read_slowly_at_constant_memory_on_both_sides(mount, size, bytes_s):
    d = mount()
    s = d.session()
    j = job(s).start(f'head -c {size} /dev/zero | tr "\\0" x')
    wait_for(lambda: j.status()['stdout_bytes'])
    guest = guests_of(d)  # a job that is about to begin bears its name
    most = in_child(lambda: read_slowly(j, size, bytes_s, [d.pid, *guest]), 500)
    assert j.exit() == '0' and len(guest) == 1
    if os.environ.get('WSMFS_SANITIZER', 'none') == 'none':
        assert most[d.pid] < 64 << 10 and most[guest[0]] < 16 << 10, most


@pytest.mark.timeout(600)
def test_a_gibibyte_of_standard_input_arrives_whole(mount):
    s = mount().session()
    j = job(s)
    block = os.urandom(1 << 20)

    def feed():
        with open(j / 'stdin', 'wb') as f:
            j.start('sha256sum')
            for _ in range(1024):
                f.write(block)

    in_child(feed, 400)
    want = hashlib.sha256()
    for _ in range(1024):
        want.update(block)
    assert j.exit(200) == '0'
    assert j.text('stdout').split()[0] == want.hexdigest()


@pytest.mark.timeout(600)
def test_three_hundred_jobs_are_followed_by_one_asyncio_thread(mount):
    s = mount().session()
    made = {i: job(s, f'j{i}') for i in range(300)}

    async def follow(i):
        """As a program does that knows nothing but files: waits for the descriptor, reads without blocking."""
        loop, pieces = asyncio.get_running_loop(), []
        with opened(made[i] / 'stdout', os.O_RDONLY | os.O_NONBLOCK) as fd:
            made[i].start(f'for k in 1 2 3; do echo {i}.$k; sleep 0.1; done')
            while True:
                ready = loop.create_future()
                loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
                await ready
                loop.remove_reader(fd)
                piece = os.read(fd, 65536)
                if not piece:
                    return b''.join(pieces).decode()
                pieces.append(piece)

    async def follow_all():
        return await asyncio.wait_for(asyncio.gather(*map(follow, made)), 300)

    outputs = in_child(lambda: asyncio.run(follow_all()), 400)
    assert outputs == [''.join(f'{i}.{k}\n' for k in (1, 2, 3)) for i in made]


@pytest.mark.timeout(600)
def test_names_and_sizes_are_right_directly_after_exit(mount):
    s = mount().session()
    s.use()
    count = 20000
    os.mkdir(s / 'd')
    Child(lambda: [write(s / f'd/f{i}', 'x') for i in range(count)]).result(400)
    for i in range(count):
        os.stat(s / f'd/f{i}')
    assert len(os.listdir(s / 'd')) == count
    j = job(s).start('cd d; i=0; while [ $i -lt 20000 ]; do case $((i % 4)) in '
                     '0) echo longer > f$i;; 1) rm f$i;; 2) mv f$i g$i;; esac; i=$((i+1)); done')
    assert j.exit(400) == '0'
    for i in range(count):
        if i % 4 == 0:
            assert os.stat(s / f'd/f{i}').st_size == 7, i
        elif i % 4 == 3:
            assert os.stat(s / f'd/f{i}').st_size == 1, i
        else:
            assert not os.path.lexists(s / f'd/f{i}'), i
            assert os.path.exists(s / f'd/g{i}') == (i % 4 == 2), i
    assert len(os.listdir(s / 'd')) == count * 3 // 4
