# SPDX-License-Identifier: Apache-2.0
"""Nothing grows, and what is idle costs little."""

import os
import random

import pytest

from harness import SANITIZER, errno_of, in_child, read, wait_for, write

ROUND = 2000


def work(s, rounds, seed):
    """Each round is some ten operations of all kinds."""
    rng = random.Random(seed)
    for i in range(rounds):
        name = s / f'd{rng.randrange(20)}/f{rng.randrange(50)}'
        errno_of(os.mkdir, os.path.dirname(name))
        write(name, 'x' * rng.randrange(100))
        read(name)
        os.stat(name)
        errno_of(os.rename, name, s / f'd{rng.randrange(20)}/g{rng.randrange(50)}')
        errno_of(os.unlink, s / f'd{rng.randrange(20)}/g{rng.randrange(50)}')
        errno_of(os.stat, s / f'nothing{i}')
        if i % 20 == 0:
            os.listdir(s.path)
            read(f'{s.control}/status')
            s.ctl('touch')
        if i % 500 == 0:
            os.listdir(os.path.dirname(name)) if os.path.exists(os.path.dirname(name)) else None


def grown(daemon, s, rounds, seed):
    in_child(lambda: work(s, rounds, seed), 800)
    return daemon.descriptors(), daemon.memory_bytes()


def test_descriptors_do_not_grow_with_operations(daemon, s):
    first = grown(daemon, s, ROUND // 4, 1)[0]
    second = grown(daemon, s, ROUND, 2)[0]
    # At most one descriptor a directory and a name of the small set that is worked on.
    assert second <= first + 64


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(SANITIZER != 'none', reason='sanitizers keep freed memory')
def test_a_million_operations_grow_neither_descriptors_nor_memory(daemon, s):
    fds, memory = grown(daemon, s, 10000, 1)
    for n in range(5):
        after_fds, after_memory = grown(daemon, s, 20000, 2 + n)
    assert after_fds <= fds + 64
    assert after_memory <= memory + (4 << 20)


def test_sessions_that_come_and_go_leave_nothing(daemon):
    def cycle(n, first):
        for i in range(first, first + n):
            s = daemon.session(f'alice/a{i}/s{i}')
            write(s / 'f', 'x')
            s.ctl('destroy')
            os.rmdir(s.path)
            os.rmdir(os.path.dirname(s.path))
    in_child(lambda: cycle(20, 0))
    before = daemon.descriptors()
    in_child(lambda: cycle(200, 1000), 120)
    wait_for(lambda: daemon.descriptors() <= before + 4)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(SANITIZER != 'none', reason='sanitizers keep freed memory')
def test_ten_thousand_idle_sessions_and_a_hundred_thousand_known_files_stay_within_the_stated_memory(mount):
    daemon = mount(isolation='per_session', ttl='1h')
    in_child(lambda: os.listdir(daemon.session('warm/up/s').path))
    idle = daemon.memory_bytes()
    assert idle <= 8 << 20
    sessions = [daemon.session(f'alice/coder/s{i}') for i in range(10000)]

    def open_all():
        for s in sessions:
            os.close(os.open(s.path, os.O_RDONLY | os.O_DIRECTORY))
    in_child(open_all, 300)
    live = daemon.memory_bytes()
    assert (live - idle) / 10000 <= 8 << 10
    below = f'{daemon.basedir}/alice/coder'

    def make_and_know():
        for i in range(100):
            for k in range(1000):
                os.close(os.open(f'{below}/s{i}/f{k}', os.O_CREAT | os.O_WRONLY, 0o600))
        for i in range(100):
            for k in range(1000):
                os.stat(sessions[i] / f'f{k}')
    in_child(make_and_know, 500)
    known = daemon.memory_bytes()
    assert (known - live) / 100000 <= 256


def test_an_idle_daemon_is_small(daemon, s):
    s.use()
    if SANITIZER == 'none':
        assert daemon.memory_bytes() <= 8 << 20
    assert daemon.descriptors() < 60
