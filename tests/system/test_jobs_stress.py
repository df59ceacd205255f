# SPDX-License-Identifier: Apache-2.0
"""Jobs in numbers, and daemons that die while they run."""

import hashlib
import os
import random
import select
import signal
import time

import pytest

from harness import Child, in_child, read, wait_for, write
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
def test_running_jobs_survive_twenty_kills_of_the_daemon(mount):
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
        kill_daemon(d)
        d.start()
    for name in names:
        j = Job(s, name)
        assert j.exit(200) == '5', name
        assert j.text('stdout') == ''.join(f'{name} line {i}\n' for i in range(1, 4001)), name
    assert sorted(read(s / 'starts').split()) == sorted(names)


@pytest.mark.timeout(600)
def test_two_gibibytes_are_read_slowly_at_constant_memory(mount):
    d = mount()
    s = d.session()
    size = 2 << 30
    j = job(s).start(f'head -c {size} /dev/zero | tr "\\0" x')

    def rss():
        with open(f'/proc/{d.pid}/status') as f:
            return next(int(line.split()[1]) for line in f if line.startswith('VmRSS'))

    def slowly():
        total, most = 0, 0
        with opened(j / 'stdout', os.O_RDONLY) as fd:
            while piece := os.read(fd, 1 << 20):
                total += len(piece)
                assert piece.count(b'x') == len(piece)
                if total % (64 << 20) < (1 << 20):
                    most = max(most, rss())
                    time.sleep(0.02)
        return total, most

    total, most = in_child(slowly, 500)
    assert total == size and j.exit() == '0'
    if os.environ.get('WSMFS_SANITIZER', 'none') == 'none':
        assert most < 64 << 10


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
def test_three_hundred_jobs_are_followed_by_one_poll_loop(mount):
    s = mount().session()
    made = {}
    for i in range(300):
        j = job(s, f'j{i}')
        made[os.open(j / 'stdout', os.O_RDONLY | os.O_NONBLOCK)] = (i, [])
        j.start(f'for k in 1 2 3; do echo {i}.$k; sleep 0.1; done')
    poll = select.poll()
    for fd in made:
        poll.register(fd, select.POLLIN)
    ended = time.monotonic() + 300
    left = dict(made)
    while left and time.monotonic() < ended:
        for fd, _ in poll.poll(5000):
            piece = os.read(fd, 65536)
            if piece:
                made[fd][1].append(piece)
            else:
                poll.unregister(fd)
                os.close(fd)
                del left[fd]
    assert not left
    for i, pieces in made.values():
        assert b''.join(pieces).decode() == ''.join(f'{i}.{k}\n' for k in (1, 2, 3))


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
