# SPDX-License-Identifier: Apache-2.0
"""Moving and removing the upper three levels: nothing of it may cost a file."""

import contextlib
import os
import shutil
import subprocess

import pytest

from harness import (RENAME_EXCHANGE, RENAME_NOREPLACE, errno_of, read, renameat2, run, tree, wait_for, write)
from workbench import compiled, without  # pylint: disable=unused-import


@pytest.fixture(params=['per_agent', 'per_session'])
def full(request, mount):
    """Two users with two agents with two sessions, all with files."""
    daemon = mount(isolation=request.param)
    for user in ['alice', 'bob']:
        for agent in ['coder', 'tester']:
            for session in ['s1', 's2']:
                s = daemon.session(f'{user}/{agent}/{session}')
                os.makedirs(s / f'dir-{session}')
                write(s / f'dir-{session}/{user}-{agent}-{session}', 'x')
                write(s / f'file-{session}', 'y')
    return daemon


def below(daemon):
    """All files on the disk. (A look at the target may have made an empty directory.)"""
    return {name: what for name, what in tree(daemon.basedir, skip=('.wsmfs',)).items() if what[0] != 'dir'}


MOVES = [  # from, to
    ('alice/coder/s1', 'alice/coder/s2'), ('alice/coder/s1', 'alice/coder/new'), ('alice/coder/s1', 'alice/coder/n.ew'),
    ('alice/coder/s1', 'alice/coder/s2/inside'), ('alice/coder/s1', 'alice/coder/s2/dir-s2/inside'),
    ('alice/coder/s1', 'alice/coder/s1/inside'), ('alice/coder/s1', 'alice/tester/s1'), ('alice/coder/s1', 'alice/tester/n.ew'),
    ('alice/coder/s1', 'bob/coder/s1'), ('alice/coder/s1', 'alice/n.ew'), ('alice/coder/s1', 'n.ew'),
    ('alice/coder/s1', 'bob'), ('alice/coder', 'alice/tester'), ('alice/coder', 'alice/n.ew'), ('alice/coder', 'bob/coder'),
    ('alice/coder', 'bob/n.ew'), ('alice/coder', 'alice/tester/s1/inside'), ('alice/coder', 'n.ew'),
    ('alice/coder', 'bob/coder/s1/inside'), ('alice', 'bob'), ('alice', 'n.ew'), ('alice', 'carol'),
    ('alice', 'bob/n.ew'), ('alice', 'bob/coder/n.ew'), ('alice', 'bob/coder/s1/inside')]


def test_a_rename_of_a_session_agent_or_user_is_eperm_and_changes_no_file(full):
    before = below(full)
    for old, new in MOVES:
        expected = ('EPERM', 'EINVAL') if f'{new}/'.startswith(f'{old}/') else ('EPERM',)
        assert errno_of(os.rename, f'{full.mnt}/{old}', f'{full.mnt}/{new}') in expected, (old, new)
    assert below(full) == before


@pytest.mark.parametrize('flags', [RENAME_NOREPLACE, RENAME_EXCHANGE])
def test_renames_with_flags_change_no_file_either(full, flags):
    before = below(full)
    for old, new in MOVES:
        assert errno_of(renameat2, f'{full.mnt}/{old}', f'{full.mnt}/{new}', flags) in \
            ('EPERM', 'EINVAL', 'EEXIST', 'ENOENT'), (old, new)
    assert below(full) == before


def test_mv_says_no_and_changes_no_file(full):
    before = below(full)
    for old, new in MOVES:
        for words in [['-f', '-T'], ['-f']]:
            text = run('mv', *words, f'{full.mnt}/{old}', f'{full.mnt}/{new}', check=False)
            assert 'mv: ' in text, (words, old, new)
    assert below(full) == before


@pytest.mark.parametrize('old, new', MOVES)
def test_pythons_shutil_move_changes_no_file(full, old, new):
    before = below(full)
    with contextlib.suppress(OSError, shutil.Error):
        shutil.move(f'{full.mnt}/{old}', f'{full.mnt}/{new}')
    assert below(full) == before


def test_a_directory_of_a_workspace_cannot_be_moved_to_the_upper_levels(full):
    before = below(full)
    for new in ['n.ew', 'alice/n.ew', 'alice/coder/n.ew', 'alice/coder/s2', 'bob/coder/s1']:
        assert errno_of(os.rename, f'{full.mnt}/alice/coder/s1/dir-s1', f'{full.mnt}/{new}') in ('EPERM', 'EXDEV')
        assert errno_of(os.rename, f'{full.mnt}/alice/coder/s1/file-s1', f'{full.mnt}/{new}') in \
            ('EPERM', 'EXDEV', 'EISDIR')
    assert below(full) == before


def test_an_ordinary_mv_within_a_session_works(full):
    s = full.session('alice/coder/s1')
    run('mv', s / 'file-s1', s / 'dir-s1/moved')
    run('mv', s / 'dir-s1', s / 'elsewhere')
    assert read(s / 'elsewhere/moved') == 'y'


# ── destroying and forgetting ───────────────────────────────────────────────────────────────

def test_destroy_removes_the_files_and_leaves_an_empty_workspace(daemon, s):
    os.makedirs(s / 'd/e')
    write(s / 'd/e/f', 'x')
    s.ctl('destroy')
    assert s.state() == 'absent'
    assert not os.path.exists(f'{daemon.basedir}/alice/coder/d')
    assert os.listdir(s.path) == []
    write(s / 'new', 'x')
    assert os.listdir(s.path) == ['new']


def test_destroy_by_one_of_two_sessions_is_ebusy_and_names_the_other(daemon, s):
    other = daemon.session('alice/coder/s2').use()
    write(s / 'f', 'x')
    assert errno_of(s.ctl, 'destroy') == 'EBUSY'
    assert 's2' in s.error()
    assert read(other / 'f') == 'x'
    other.ctl('forget')
    s.ctl('destroy')
    assert os.listdir(s.path) == []


def test_destroy_force_overrides(daemon, s):
    other = daemon.session('alice/coder/s2').use()
    write(s / 'f', 'x')
    s.ctl('destroy force')
    assert os.listdir(other.path) == []


def test_destroy_leaves_the_neighbours_alone(mount):
    daemon = mount(isolation='per_session')
    s1, s2 = daemon.session('alice/coder/s1'), daemon.session('alice/coder/s2')
    bob = daemon.session('bob/coder/s1')
    for s in [s1, s2, bob]:
        write(s / 'f', 'x')
    s1.ctl('destroy')
    assert read(s2 / 'f') == 'x' and read(bob / 'f') == 'x'


def test_destroy_of_a_per_user_workspace_leaves_other_users_alone(mount):
    daemon = mount(isolation='per_user')
    alice, bob = daemon.session('alice/coder/s1'), daemon.session('bob/coder/s1')
    write(alice / 'f', 'x')
    write(bob / 'f', 'x')
    alice.ctl('destroy')
    assert os.listdir(alice.path) == []
    assert read(bob / 'f') == 'x'


def test_destroy_follows_no_symbolic_link(daemon, s):
    outside = f'{daemon.top}/outside'
    os.mkdir(outside)
    write(f'{outside}/precious', 'x')
    s.use()
    os.symlink(outside, f'{daemon.basedir}/alice/coder/link')
    s.ctl('destroy')
    assert read(f'{outside}/precious') == 'x'


def test_destroy_removes_files_that_nobody_may_write(daemon, s):
    os.makedirs(s / 'd/e')
    write(s / 'd/e/f', 'x')
    for name, mode in [('d/e/f', 0), ('d/e', 0o500), ('d', 0)]:
        os.chmod(s / name, mode)
    s.ctl('destroy')
    assert os.listdir(s.path) == []


def test_destroy_under_an_open_file_and_a_working_directory_hangs_nobody(daemon, s):
    os.mkdir(s / 'd')
    write(s / 'd/f', 'x')
    fd = os.open(s / 'd', os.O_RDONLY)
    try:
        s.ctl('destroy force')
        assert errno_of(os.listdir, fd) in (None, 'ENOENT', 'ESTALE')
    finally:
        os.close(fd)
    assert os.listdir(s.path) == []


def test_a_destroyed_directory_made_again_is_a_new_one(daemon, s):
    for i in range(5):
        os.mkdir(s / 'd')
        write(s / 'd/f', str(i))
        assert read(s / 'd/f') == str(i)
        s.ctl('destroy')
        assert errno_of(os.stat, s / 'd') == 'ENOENT'


def test_close_of_a_shared_workspace_is_ebusy_while_a_file_is_open_unless_forced(daemon, s):
    other = daemon.session('alice/coder/s2').use()
    with open(other / 'f', 'w', encoding='utf-8') as f:
        f.write('1')
        f.flush()
        assert errno_of(s.ctl, 'close') == 'EBUSY'
        s.ctl('close force')
        assert s.state() == 'absent'
        f.write('2')
    assert read(s / 'f') == '12'


def test_a_file_that_was_closed_just_before_is_not_open_any_more(mount, compiled):
    """The kernel tells of a close and waits for nobody; here the daemon takes its time to hear of it."""
    d = mount.prepare()
    d.extra_env = without(compiled('late_close.c', '-shared', '-fPIC'))
    s, other = d.start().session(), d.session('alice/coder/s2').use()
    for i in range(5):
        for what in (lambda: other.ctl('close'), lambda i=i: s.bind(f'team-{i}'), lambda: s.ctl('fresh'), lambda: s.bind('')):
            write(s / 'f', 'x')
            what()


def test_close_by_the_only_session_closes_under_an_open_file(daemon, s):
    with open(s / 'f', 'w', encoding='utf-8') as f:
        f.write('1')
        f.flush()
        s.ctl('close')
        assert s.state() == 'absent'
        f.write('2')
    assert read(s / 'f') == '12'


def test_a_close_keeps_the_files_and_the_next_access_comes_back(s):
    write(s / 'f', 'x')
    for _ in range(5):
        s.ctl('close')
        assert s.state() == 'absent'
        assert read(s / 'f') == 'x'
        assert s.state() == 'ready'


def test_a_closed_workspace_comes_back_under_a_working_directory_and_an_open_directory(daemon, s):
    os.makedirs(s / 'd/e')
    write(s / 'd/f', 'x')
    fd = os.open(s / 'd', os.O_RDONLY)
    shell = daemon.popen('bash', stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def ask(line):
        shell.stdin.write(line + '\n')
        shell.stdin.flush()
        return shell.stdout.readline()
    try:
        assert ask(f'cd {s.path}/d/e; pwd') == f'{s.path}/d/e\n'
        for i in range(3):
            s.ctl('close')
            assert s.state() == 'absent'
            assert ask('cat ../f; echo') == 'x\n'
            assert s.state() == 'ready'
            s.ctl('close')
            assert sorted(os.listdir(fd)) == ['e', 'f']
            os.close(os.open(f'new{i}', os.O_CREAT | os.O_WRONLY, dir_fd=fd))
            s.ctl('close')
            os.unlink(f'new{i}', dir_fd=fd)
            assert ask('ls -a | wc -l') == '2\n'
    finally:
        os.close(fd)


def test_what_was_removed_below_a_closed_workspace_is_gone_or_stale_not_wrong(daemon, s):
    os.mkdir(s / 'd')
    write(s / 'd/f', 'x')
    fd = os.open(s / 'd', os.O_RDONLY)
    try:
        s.ctl('close')
        shutil.rmtree(f'{daemon.basedir}/alice/coder/d')
        os.mkdir(f'{daemon.basedir}/alice/coder/other')
        assert errno_of(os.stat, 'f', dir_fd=fd) in ('ESTALE', 'ENOENT')
    finally:
        os.close(fd)
    assert os.listdir(s.path) == ['other']


def test_forget_is_rmdir_by_name(daemon, s):
    write(s / 'f', 'x')
    s.ctl('forget')
    assert os.listdir(f'{daemon.mnt}/alice/coder') == []
    assert read(s / 'f') == 'x'


def test_forgetting_a_bound_session_unbinds_it(daemon, s):
    own = s.id()
    s.bind('team-7')
    write(s / 'f', 'x')
    os.rmdir(s.path)
    assert s.id() == own
    assert errno_of(os.stat, s / 'f') == 'ENOENT'
    daemon.restart()
    assert s.id() == own


def test_forgetting_under_a_working_directory_hangs_nobody(daemon, s):
    write(s / 'f', 'x')
    fd = os.open(s.path, os.O_RDONLY)
    try:
        os.rmdir(s.path)
        assert errno_of(os.stat, 'f', dir_fd=fd) in (None, 'ENOENT', 'ESTALE')
    finally:
        os.close(fd)
    wait_for(lambda: read(s / 'f') == 'x')


def test_rm_rf_of_the_mount_point_keeps_what_it_may_not_remove_and_ends(daemon, s):
    write(s / 'f', 'x')
    run('rm', '-rf', daemon.mnt, check=False)
    assert os.listdir(daemon.mnt) == []
    assert daemon.status()
