# SPDX-License-Identifier: Apache-2.0
"""What a container does to its files, seen through the mount: at once when its job has ended, and within a second while
it goes on; and locks that hold on both sides."""

import fcntl
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time

import pytest

from harness import HOST_BIND, HOST_IMAGE, SLOWNESS, errno_of, read, wait_for, write
from jobs import Job, job
from workbench import PROGRAMS, below

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


@pytest.fixture(name='s')
def _s(docker):
    return docker(image=HOST_IMAGE, config=f'[sandbox]\nbind = {HOST_BIND}\n').session()


class Inside:
    """A job that does what it is told, line by line, and goes on."""

    def __init__(self, s, name='inside'):
        self.job = Job(s, name).make()
        self.stdin = open(self.job / 'stdin', 'w', encoding='utf-8')
        self.job.start('echo up; while read -r line; do eval "$line"; echo "did $line"; done')
        self.job.wait_output('up')

    def tell(self, line):
        self.stdin.write(line + '\n')
        self.stdin.flush()

    def do(self, line):
        self.tell(line)
        self.job.wait_output(f'did {line}\n')

    def end(self):
        self.stdin.close()
        assert self.job.exit() == '0', self.job.text('log')


def test_what_a_job_did_is_there_when_exit_reads(s):
    write(s / 'f', '0\n')
    write(s / 'gone', 'x')
    os.mkdir(s / 'd')
    for i in range(20):
        before = (read(s / 'f'), sorted(os.listdir(s / 'd')), os.path.exists(s / 'made'), os.stat(s / 'f'))
        assert job(s, f'j{i}').start(f'echo {i:04} > f; rm -f d/*; touch d/{i}; [ -e made ] && mv made gone || mv gone made; '
                                     f'chmod 6{i % 8}0 f').exit() == '0'
        assert read(s / 'f') == f'{i:04}\n' != before[0]
        assert os.listdir(s / 'd') == [str(i)]
        assert os.path.exists(s / 'made') is not before[2]
        assert os.stat(s / 'f').st_mtime_ns == os.stat(below(s, 'f')).st_mtime_ns != before[3].st_mtime_ns
        assert os.stat(s / 'f').st_mode == os.stat(below(s, 'f')).st_mode


def test_what_a_running_job_does_is_seen_within_a_second(s):
    inside = Inside(s)
    steps = [
        ('echo one > f', lambda: os.path.exists(s / 'f') and read(s / 'f') == 'one\n'),
        ('echo two > f', lambda: read(s / 'f') == 'two\n'),
        ('echo three >> f', lambda: read(s / 'f') == 'two\nthree\n' and os.stat(s / 'f').st_size == 10),
        ('chmod 604 f', lambda: os.stat(s / 'f').st_mode & 0o777 == 0o604),
        ('mkdir d; touch d/a d/b', lambda: os.path.isdir(s / 'd') and sorted(os.listdir(s / 'd')) == ['a', 'b']),
        ('mv f d/g', lambda: not os.path.exists(s / 'f') and read(s / 'd/g') == 'two\nthree\n'),
        ('rm d/a', lambda: not os.path.exists(s / 'd/a') and sorted(os.listdir(s / 'd')) == ['b', 'g']),
        ('mv d e', lambda: not os.path.exists(s / 'd') and read(s / 'e/g') == 'two\nthree\n'),
        ('ln -s e/g l', lambda: os.path.exists(s / 'l') and read(s / 'l') == 'two\nthree\n'),
        ('rm -r e l', lambda: os.listdir(s.path) == [] and not os.path.exists(s / 'l')),
    ]
    took = []
    for _ in range(3):
        for line, seen in steps:
            assert not seen(), line  # and the kernel remembers what it was told now
            begin = time.monotonic()
            inside.tell(line)
            wait_for(seen, 10, line)
            took.append(time.monotonic() - begin)
    inside.end()
    print(f'seen after: median {statistics.median(took) * 1000:.1f} ms, at most {max(took) * 1000:.1f} ms')
    assert statistics.median(took) < 1, took


@pytest.mark.skipif(not shutil.which('inotifywait'), reason='no inotifywait here')
def test_who_watches_the_directory_on_the_host_and_the_mount_learn_the_same(s):
    inside = Inside(s)
    watcher = s.daemon.popen('inotifywait', '-m', '-q', '-e', 'create,close_write,moved_from,moved_to,delete',
                             '--format', '%e %f', below(s), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.set_blocking(watcher.stdout.fileno(), False)
    told, rest = [], b''

    def more():
        nonlocal rest
        *lines, rest = (rest + (watcher.stdout.read() or b'')).split(b'\n')
        told.extend(line.decode().split(' ', 1) for line in lines)
        return told
    wait_for(lambda: write(below(s, 'ready'), 'x') or more(), 20, 'it to watch')
    for i in range(20):
        inside.do(f'echo {i} > made{i}; mv made{i} moved{i}; [ {i} -lt 10 ] && rm moved{i}')
    wait_for(lambda: ['MOVED_TO', 'moved19'] in more(), 10)
    there = set()
    for event, name in told:
        there = there - {name} if event in ('DELETE', 'MOVED_FROM') else there | {name}
    assert sorted(there) == sorted([f'moved{i}' for i in range(10, 20)] + ['ready'])
    wait_for(lambda: set(os.listdir(s.path)) == there, 10)
    assert [read(s / f'moved{i}') for i in range(10, 20)] == [f'{i}\n' for i in range(10, 20)]
    inside.end()


# ── locks ───────────────────────────────────────────────────────────────────────────────────

LOCKER = 'import fcntl, os, sys; fd = os.open("f", os.O_RDWR); fcntl.{0}(fd, fcntl.LOCK_EX{1}); print("held", flush=True); sys.stdin.read()'


@pytest.mark.parametrize('kind', ['flock', 'lockf'])
def test_a_lock_on_either_side_keeps_the_other_out(s, kind):
    write(s / 'f', 'x')
    holder = Job(s, 'holder').make()
    with open(holder / 'stdin', 'w', encoding='ascii'):
        holder.start(f"exec python3 -c '{LOCKER.format(kind, '')}'")
        holder.wait_output('held')
        with open(s / 'f', 'r+', encoding='ascii') as f:
            assert errno_of(getattr(fcntl, kind), f, fcntl.LOCK_EX | fcntl.LOCK_NB) == 'EAGAIN'
    assert holder.exit() == '0'
    with open(s / 'f', 'r+', encoding='ascii') as f:
        getattr(fcntl, kind)(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        code = job(s, 'tries').start(f"exec python3 -c '{LOCKER.format(kind, ' | fcntl.LOCK_NB')}'").exit()
        assert code == '1'
        waits = job(s, 'waits').start(f"exec python3 -c '{LOCKER.format(kind, '')}'")
        waits.wait_state('running')
    assert waits.exit() == '0'
    assert waits.out() == 'held\n'


@pytest.mark.parametrize('mode', ['delete', 'wal'])
def test_a_database_written_from_both_sides_loses_nothing(s, mode):
    n = 60 // SLOWNESS
    shutil.copy(f'{PROGRAMS}/sqlite_writer.py', s / 'writer.py')
    db = sqlite3.connect(s / 'db')
    db.execute(f'pragma journal_mode = {mode}')
    db.executescript('create table t(who, n, text); create index i on t(who); create table sums(total); insert into sums values (0);')
    db.close()
    inside = Job(s, 'writer').make()
    with open(inside / 'stdin', 'w', encoding='ascii') as go:
        inside.start(f'exec python3 writer.py db {mode} inside {n} off')
        outside = s.daemon.popen(sys.executable, f'{PROGRAMS}/sqlite_writer.py', s / 'db', mode, 'outside', n, 'off',
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        inside.wait_state('running')
        go.write('go\n')
        go.flush()
        said = outside.communicate('go\n', timeout=200)[0]
        assert inside.exit(200) == '0'
    assert (said, inside.text('log')) == ('', '')
    for path in [s / 'db', below(s, 'db')]:
        db = sqlite3.connect(path)
        assert db.execute('pragma integrity_check').fetchall() == [('ok',)]
        assert db.execute('select total from sums').fetchone() == (2 * n,)
        for who in ['inside', 'outside']:
            assert [row[0] for row in db.execute('select n from t where who = ? order by n', (who,))] == list(range(n))
        db.close()
