# SPDX-License-Identifier: Apache-2.0
"""One database, one process on the mount and one in the directory below: nothing is lost in any
journal mode. (WAL needs passthrough: its index is a shared mapping.)"""

import sqlite3
import subprocess
import sys
import time

import pytest

from harness import SLOWNESS
from workbench import PROGRAMS, below

pytestmark = pytest.mark.timeout(500)

MODES = ['delete', 'truncate', 'persist', 'memory', 'off']


def has_passthrough(daemon):
    return 'file data goes straight to the backing files' in daemon.log()


def race(paths, mode, transactions, synchronous):
    db = sqlite3.connect(paths[0])
    db.execute(f'pragma journal_mode = {mode}')
    db.executescript('create table t(who, n, text); create index i on t(who); create table sums(total);'
                     'insert into sums values (0);')
    db.close()
    writers = [subprocess.Popen([sys.executable, f'{PROGRAMS}/sqlite_writer.py', path, mode, f'writer {i}', str(transactions),
                                 synchronous], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)
               for i, path in enumerate(paths)]
    try:
        time.sleep(0.2)  # so that they have started and begin together
        for w in writers:
            w.stdin.write('go\n')
            w.stdin.flush()
        said = [w.communicate(timeout=400)[0] for w in writers]
    finally:
        for w in writers:
            w.kill()
            w.wait()
    assert said == [''] * len(paths)
    expected = len(paths) * transactions
    for path in paths:
        db = sqlite3.connect(path)
        assert db.execute('pragma integrity_check').fetchall() == [('ok',)]
        assert db.execute('select count(*) from t').fetchone() == (expected,)
        assert db.execute('select total from sums').fetchone() == (expected,)
        for i in range(len(paths)):
            rows = db.execute('select n from t where who = ? order by n', (f'writer {i}',)).fetchall()
            assert rows == [(n,) for n in range(transactions)]
        db.close()


# Without waiting for the disk: what is shown is that the two sides see each other's locks and writes.
@pytest.mark.parametrize('mode', MODES + ['wal'])
def test_a_process_on_the_mount_and_one_below_lose_no_transaction(mount, mode):
    daemon = mount()
    if mode == 'wal' and not has_passthrough(daemon):
        pytest.skip('WAL from both sides needs passthrough, which is not to be had here')
    s = daemon.session().use()
    race([s / 'd.db', below(s, 'd.db')], mode, 600 // SLOWNESS, 'off')


@pytest.mark.parametrize('mode', MODES)
def test_without_passthrough_they_lose_none_either(mount, mode):
    s = mount(passthrough='off').session().use()
    race([s / 'd.db', below(s, 'd.db')], mode, 600 // SLOWNESS, 'off')


@pytest.mark.parametrize('mode', ['delete', 'wal'])
def test_two_sessions_and_a_process_below_lose_none(mount, mode):
    daemon = mount()
    if mode == 'wal' and not has_passthrough(daemon):
        pytest.skip('WAL from both sides needs passthrough, which is not to be had here')
    a, b = daemon.session('alice/coder/s1').use(), daemon.session('alice/coder/s2').use()
    race([a / 'd.db', b / 'd.db', below(a, 'd.db')], mode, 100, 'off')


@pytest.mark.slow
@pytest.mark.parametrize('mode', MODES + ['wal'])
def test_two_thousand_transactions_of_each_side_are_all_there(mount, mode):
    daemon = mount()
    if mode == 'wal' and not has_passthrough(daemon):
        pytest.skip('WAL from both sides needs passthrough, which is not to be had here')
    s = daemon.session().use()
    race([s / 'd.db', below(s, 'd.db')], mode, 2000, 'normal' if mode == 'wal' else 'off')
