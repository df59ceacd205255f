# SPDX-License-Identifier: Apache-2.0
"""Two and three sessions of one workspace see one set of files."""

import mmap
import os
import random
import stat
import threading
import time

import pytest

from harness import (SLOWNESS, RENAME_EXCHANGE, append, errno_of, in_child, open_errno, read, renameat2, run, tree, wait_for, write)
from workbench import below

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def three(fresh):
    """Three sessions of one agent, all in use."""
    agent = os.path.dirname(fresh.names)
    return [fresh.daemon.session(f'{agent}/s{i}').use() for i in (1, 2, 3)]


def looked_at(sessions, *names):
    """Lets the kernel know the names in every session."""
    for s in sessions:
        for name in names:
            errno_of(os.lstat, s / name)
        os.listdir(s.path)


# ── contents and attributes ─────────────────────────────────────────────────────────────────

def test_files_and_the_root_have_the_same_number_in_all_sessions(three):
    a, b, c = three
    os.mkdir(a / 'd')
    write(a / 'd/f', 'x')
    for name in ['d', 'd/f', '']:
        assert len({os.stat(s / name).st_ino for s in three}) == 1


def test_contents_are_changed_at_once(three):
    a, b, c = three
    write(a / 'f', '0')
    looked_at(three, 'f')
    for i in range(200):
        writer, reader = random.Random(i).sample(three, 2)
        write(writer / 'f', str(i))
        assert read(reader / 'f') == str(i)
        append(writer / 'f', 'x' * i)
        assert os.stat(reader / 'f').st_size == len(str(i)) + i


def test_attributes_are_changed_at_once(three):
    a, b, _ = three
    write(a / 'f', '0')
    looked_at(three, 'f')
    for mode in [0o600, 0o644, 0o755, 0o400] * 20:
        os.chmod(a / 'f', mode)
        assert stat.S_IMODE(os.stat(b / 'f').st_mode) == mode
        os.utime(b / 'f', (mode, mode))
        assert os.stat(a / 'f').st_mtime == mode
        os.truncate(b / 'f', mode)
        assert os.stat(a / 'f').st_size == mode


def test_a_write_is_seen_by_a_descriptor_of_another_session_at_once(three):
    a, b, _ = three
    write(a / 'f', '0' * 100)
    w, r = os.open(a / 'f', os.O_RDWR), os.open(b / 'f', os.O_RDONLY)
    try:
        for i in range(200):
            os.pwrite(w, b'%05d' % i, i % 90)
            assert os.pread(r, 5, i % 90) == b'%05d' % i
        os.ftruncate(w, 3)
        assert os.fstat(r).st_size == 3
        assert os.pread(r, 100, 0) == os.pread(w, 100, 0)
    finally:
        os.close(w)
        os.close(r)


def test_a_mapping_of_one_session_shows_what_another_writes(three):
    a, b, _ = three
    write(a / 'f', b'\0' * 4096)

    def look():
        with open(b / 'f', 'r+b') as f, mmap.mmap(f.fileno(), 4096) as m, open(a / 'f', 'r+b', buffering=0) as other:
            seen = []
            for i in range(50):
                os.pwrite(other.fileno(), b'%04d' % i, i)
                seen.append(bytes(m[i:i + 4]) == b'%04d' % i)
                m[1000 + i:1001 + i] = b'm'
                seen.append(os.pread(other.fileno(), 1, 1000 + i) == b'm')
            return all(seen)
    assert in_child(look)


def test_two_mappings_in_two_sessions_are_one_memory(three):
    a, b, _ = three
    write(a / 'f', b'\0' * 4096)

    def look():
        with open(a / 'f', 'r+b') as f, open(b / 'f', 'r+b') as g, mmap.mmap(f.fileno(), 4096) as m, \
                mmap.mmap(g.fileno(), 4096) as n:
            m[0:3] = b'one'
            first = bytes(n[0:3])
            n[0:3] = b'two'
            return first, bytes(m[0:3])
    assert in_child(look) == (b'one', b'two')


def test_a_descriptor_lives_on_when_another_session_unlinks_or_renames_the_file(three):
    a, b, _ = three
    for change in ['unlink', 'rename', 'replace']:
        write(a / 'f', 'old')
        looked_at(three, 'f')
        with open(a / 'f', 'r+b', buffering=0) as f:
            if change == 'unlink':
                os.unlink(b / 'f')
            elif change == 'rename':
                os.rename(b / 'f', b / 'moved')
            else:
                write(b / 'new', 'new')
                os.rename(b / 'new', b / 'f')
            f.write(b'OLD+')
            assert os.pread(f.fileno(), 10, 0) == b'OLD+'
        if change == 'rename':
            assert read(a / 'moved') == 'OLD+'
            os.unlink(a / 'moved')
        if change == 'replace':
            assert read(a / 'f') == 'new'


def test_32_processes_append_whole_lines_through_two_sessions_of_a_cold_workspace(mount):
    daemon = mount.test_backend()
    sessions = [daemon.session('alice/coder/s1'), daemon.session('alice/coder/s2')]

    def work(n):
        for i in range(100):
            fd = os.open(sessions[n % 2] / 'log', os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(fd, f'{n:02} {i:03} {"x" * 60}\n'.encode())
            os.close(fd)
    children = [daemon.child(lambda n=n: work(n)) for n in range(32)]
    for child in children:
        child.result(200)
    lines = read(sessions[0] / 'log').splitlines()
    assert sorted(lines) == sorted(f'{n:02} {i:03} {"x" * 60}' for n in range(32) for i in range(100))
    made = [l for l in read(f'{daemon.top}/control/log').splitlines() if l.startswith('provision ')]
    assert len(made) == 1


# ── names ───────────────────────────────────────────────────────────────────────────────────

def test_names_made_and_removed_in_one_session_are_seen_in_the_others_at_once(three):
    for i in range(300):
        here, *others = random.Random(i).sample(three, 3)
        write(here / 'f', str(i))
        assert [os.path.exists(s / 'f') for s in others] == [True, True], i
        assert [os.listdir(s.path) for s in others] == [['f'], ['f']], i
        os.unlink(here / 'f')
        assert [errno_of(os.stat, s / 'f') for s in others] == ['ENOENT', 'ENOENT'], i
        assert [os.listdir(s.path) for s in others] == [[], []], i


def change_at_random(rng, sessions, dirs, names):
    """Made, removed, moved or replaced, mostly through the first session, and often the same name again."""
    s = sessions[0] if rng.random() < 0.7 else rng.choice(sessions)
    path = s / f'{rng.choice(dirs)}/{rng.choice(names)}'
    other = s / f'{rng.choice(dirs)}/{rng.choice(names)}'
    how = rng.choice([lambda: open(path, 'x', encoding='ascii').close(), lambda: os.unlink(path),
                      lambda: os.rename(path, other), lambda: os.mkdir(path), lambda: os.rmdir(path),
                      lambda: (os.unlink(path), open(path, 'x', encoding='ascii').close())])
    errno_of(how)


def seen_at_random(rng, names):
    """A look at something of a directory: (what, function of its path)."""
    name = rng.choice(names)

    def identity(path):
        try:
            st = os.lstat(f'{path}/{name}')
        except OSError as e:
            return e.errno
        return st.st_ino, st.st_mode, st.st_nlink, st.st_size

    def times(path):
        st = os.stat(path)
        return st.st_mtime_ns, st.st_nlink
    return rng.choice([(name, identity), ('listing', lambda path: sorted(os.listdir(path))), ('directory', times)])


def test_whatever_changes_in_one_session_and_whoever_looks_when_all_agree_with_the_disk(three):
    os.makedirs(three[0] / 'd/e')
    rng = random.Random(4)
    for i in range(1500):
        for _ in range(rng.randrange(1, 5)):
            change_at_random(rng, three, ['d', 'd/e'], 'fgh')
        for s in three:
            if rng.random() < 0.5:
                where, (what, look) = rng.choice(['d', 'd/e']), seen_at_random(rng, 'fgh')
                assert look(f'{s.path}/{where}') == look(below(three[0], where)), (i, what)


def test_directories_made_and_removed_in_one_session_are_seen_in_the_others_at_once(three):
    for i in range(150):
        here, *others = random.Random(i).sample(three, 3)
        os.mkdir(here / 'd')
        write(others[0] / 'd/f', str(i))
        assert os.listdir(others[1] / 'd') == ['f']
        os.unlink(others[1] / 'd/f')
        os.rmdir(others[0] / 'd')
        assert [errno_of(os.stat, s / 'd') for s in three] == ['ENOENT'] * 3


def test_renames_in_one_session_are_seen_in_the_others_at_once(three):
    os.mkdir(three[0] / 'd')
    write(three[0] / 'a', '0')
    for i in range(150):
        here, *others = random.Random(i).sample(three, 3)
        looked_at(three, 'a', 'd/b', 'd')
        os.rename(here / 'a', here / 'd/b')
        for s in others:
            assert errno_of(os.stat, s / 'a') == 'ENOENT'
            assert read(s / 'd/b') == '0'
        os.rename(others[0] / 'd/b', others[0] / 'a')
        assert [errno_of(os.stat, s / 'd/b') for s in three] == ['ENOENT'] * 3


def test_a_directory_renamed_in_one_session_keeps_its_content_in_the_others(three):
    a, b, c = three
    os.makedirs(a / 'x/y')
    write(a / 'x/y/f', '1')
    looked_at(three, 'x/y/f', 'x', 'x/y')
    for i in range(50):
        os.rename(a / 'x', a / 'z')
        assert read(b / 'z/y/f') == '1'
        assert errno_of(os.stat, b / 'x/y/f') == 'ENOENT'
        os.rename(b / 'z', b / 'x')
        assert read(c / 'x/y/f') == '1'
        assert errno_of(os.stat, a / 'z') == 'ENOENT'
        assert read(a / 'x/y/f') == '1'


def test_names_exchanged_in_one_session_are_exchanged_in_the_others(three):
    a, b, _ = three
    write(a / 'f', '1')
    os.mkdir(a / 'd')
    for i in range(50):
        looked_at(three, 'f', 'd')
        renameat2(a / 'f', a / 'd', RENAME_EXCHANGE)
        assert os.path.isdir(b / 'f') and read(b / 'd') == '1'
        renameat2(b / 'f', b / 'd', RENAME_EXCHANGE)
        assert os.path.isdir(a / 'd') and read(a / 'f') == '1'


def test_links_made_in_one_session_are_seen_in_the_others(three):
    a, b, c = three
    write(a / 'f', '1')
    looked_at(three, 'f', 'g', 'l')
    os.link(a / 'f', a / 'g')
    os.symlink('f', a / 'l')
    assert read(b / 'g') == '1' and os.readlink(b / 'l') == 'f'
    assert os.stat(c / 'f').st_nlink == 2
    os.unlink(b / 'f')
    assert os.stat(a / 'g').st_nlink == 1


def test_a_process_whose_directory_another_session_moves_goes_on_working(three):
    a, b, _ = three
    os.mkdir(a / 'd')
    write(a / 'd/f', '1')

    def work():
        os.chdir(a / 'd')
        os.rename(b / 'd', b / 'e')
        write('g', '2')
        return read('f')
    assert in_child(work) == '1'
    assert read(b / 'e/g') == '2'


def test_a_directory_held_open_stays_usable_when_another_session_removes_it(three):
    a, b, _ = three
    os.mkdir(a / 'd')
    fd = os.open(a / 'd', os.O_RDONLY)
    try:
        os.rmdir(b / 'd')
        assert os.listdir(fd) == []
        assert open_errno('f', os.O_CREAT | os.O_WRONLY, dir_fd=fd) in ('ENOENT', 'ESTALE')
    finally:
        os.close(fd)


# ── races ───────────────────────────────────────────────────────────────────────────────────

NAMES = ['a', 'b', 'c', 'd', 'e']
DIRS = ['', 'x/', 'y/', 'x/z/']
# What a race may well answer; anything else is a fault.
LINK = 3  # of what has become a directory: EPERM
RACE = {None, 'ENOENT', 'EEXIST', 'ENOTEMPTY', 'ENOTDIR', 'EISDIR', 'EINVAL', 'ESTALE', 'EBUSY', 'ELOOP'}


def race(session, seed, n, dirs):
    """n random changes of a few names."""
    rng = random.Random(seed)
    odd = {}

    def place():
        return session / (rng.choice(DIRS if dirs else ['']) + rng.choice(NAMES))
    for i in range(n):
        what, one, two = rng.randrange(9 if dirs else 6), place(), place()
        calls = [lambda: write(one, str(i)), lambda: os.rename(one, two), lambda: os.unlink(one),
                 lambda: os.link(one, two), lambda: os.stat(one), lambda: os.listdir(session.path),
                 lambda: os.mkdir(one), lambda: os.rmdir(one),
                 lambda: os.rename(session / rng.choice(DIRS[1:]), session / rng.choice(DIRS[1:]))]
        code = errno_of(calls[what])
        if code not in RACE and (code, what) != ('EPERM', LINK):
            odd[code] = (what, one, two)
    return odd


def settle(sessions):
    """All sessions show the same tree, and that of the disk, once nobody changes it any more."""
    below = f'{sessions[0].daemon.basedir}/{os.path.dirname(sessions[0].names)}'

    def same():
        disk = tree(below)
        return all(tree(s.path) == disk for s in sessions)
    wait_for(same, 20)


@pytest.mark.concurrency
@pytest.mark.parametrize('sessions, dirs', [(2, False), (3, False), (2, True), (3, True)])
def test_racing_changes_of_the_same_names_never_hang_and_the_trees_agree(three, sessions, dirs):
    used = three[:sessions]
    if dirs:
        os.makedirs(used[0] / 'x/z')
        os.makedirs(used[0] / 'y')
    each = 12000 // (2 * sessions) // (4 if SLOWNESS == 10 else 1)
    daemon = used[0].daemon
    children = [daemon.child(lambda s=s, i=i: race(s, i, each, dirs)) for i, s in enumerate(used * 2)]
    for child in children:
        assert child.result(250) == {}
    settle(used)


@pytest.mark.concurrency
def test_racing_rounds_on_one_name_leave_the_same_tree_each_time(three):
    """The old state may be seen for a moment while others change names, never after."""
    rounds = 40 if SLOWNESS < 10 else 15
    for n in range(rounds):
        children = [s.daemon.child(lambda s=s, n=n: race(s, f'{n}{s.names}', 60, False)) for s in three]
        for child in children:
            assert child.result(100) == {}
        settle(three)


@pytest.mark.concurrency
def test_one_of_three_sessions_wins_an_exclusive_create(three):
    def make(s):
        return errno_of(lambda: os.close(os.open(s / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)))
    for i in range(100):
        name = f'f{i}'
        results = []
        threads = [threading.Thread(target=lambda s=s: results.append(make(s))) for s in three]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert sorted(results, key=str) == ['EEXIST', 'EEXIST', None]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_racing_changes_hold_for_a_quarter_of_a_million_operations(three):
    os.makedirs(three[0] / 'x/z')
    os.makedirs(three[0] / 'y')
    daemon = three[0].daemon
    children = [daemon.child(lambda s=s, i=i: race(s, 1000 + i, 42000, True)) for i, s in enumerate(three * 2)]
    for child in children:
        assert child.result(800) == {}
    settle(three)


def test_changes_become_visible_within_fifty_milliseconds_while_others_change_names(three):
    """Design: within 50 ms; on a busy machine the median is what can be asked for."""
    a, b, c = three
    stop = threading.Event()

    def noise():
        while not stop.is_set():
            write(c / 'noise', 'x')
            os.unlink(c / 'noise')
    t = threading.Thread(target=noise)
    t.start()
    waits = []
    try:
        for i in range(60):
            errno_of(os.stat, b / 'f')
            write(a / 'f', 'x')
            start = time.monotonic()
            wait_for(lambda: os.path.exists(b / 'f'), 20)
            waits.append(time.monotonic() - start)
            os.unlink(a / 'f')
            wait_for(lambda: not os.path.exists(b / 'f'), 20)
    finally:
        stop.set()
        t.join()
    assert sorted(waits)[len(waits) // 2] < 0.05 * SLOWNESS


# ── between sessions ────────────────────────────────────────────────────────────────────────

def test_a_rename_from_one_session_into_another_is_exdev(three):
    a, b, _ = three
    write(a / 'f', '1')
    os.mkdir(a / 'd')
    assert errno_of(os.rename, a / 'f', b / 'g') == 'EXDEV'
    assert errno_of(os.rename, a / 'd', b / 'e') == 'EXDEV'
    assert sorted(os.listdir(a.path)) == ['d', 'f']


def test_a_rename_of_a_directory_into_itself_by_way_of_another_session_is_einval(three):
    a, b, _ = three
    os.makedirs(a / 'd/e')
    write(a / 'd/f', '1')
    assert errno_of(os.rename, a / 'd', b / 'd/e/x') == 'EINVAL'
    assert errno_of(os.rename, a / 'd', b / 'd/x') == 'EINVAL'
    assert read(a / 'd/f') == '1'


def test_mv_of_a_directory_into_itself_by_way_of_another_session_loses_nothing(three):
    a, b, _ = three
    os.makedirs(a / 'd/e')
    write(a / 'd/f', '1')
    before = tree(a.path)
    run('mv', a / 'd', b / 'd/e', check=False)
    assert tree(a.path) == before


def test_a_rename_onto_the_same_object_by_way_of_another_session_does_nothing(three):
    a, b, _ = three
    write(a / 'f', '1')
    os.mkdir(a / 'd')
    assert errno_of(os.rename, a / 'f', b / 'f') is None
    assert errno_of(os.rename, a / 'd', b / 'd') is None
    assert sorted(os.listdir(a.path)) == ['d', 'f']
    assert read(a / 'f') == '1'


def test_mv_of_a_file_from_one_session_to_another_leaves_one_file(three):
    a, b, _ = three
    write(a / 'f', '1')
    run('mv', a / 'f', b / 'g')
    assert os.listdir(a.path) == os.listdir(b.path) == ['g']
    assert read(a / 'g') == '1'


def test_a_link_across_sessions_of_one_workspace_is_a_link_or_exdev(three):
    a, b, _ = three
    write(a / 'f', '1')
    assert errno_of(os.link, a / 'f', b / 'g') in (None, 'EXDEV')


def test_nothing_moves_between_workspaces(shared_daemon, fresh, three):
    other = shared_daemon.session(f'{fresh.names.split("/")[0]}/another/s1').use()
    write(three[0] / 'f', '1')
    assert errno_of(os.rename, three[0] / 'f', other / 'f') == 'EXDEV'
    assert errno_of(os.link, three[0] / 'f', other / 'f') == 'EXDEV'
    assert os.listdir(other.path) == []


def test_looking_through_one_session_never_moves_the_working_directory_of_another(three):
    """One directory node with two names would be moved by the kernel under its users."""
    a, b, c = three
    os.makedirs(a / 'd/e')

    def work():
        os.chdir(a / 'd/e')
        for s in [b, c, a, b]:
            os.stat(s / 'd/e')
            os.listdir(s / 'd')
        return os.getcwd()
    assert in_child(work) == a / 'd/e'
