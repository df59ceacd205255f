# SPDX-License-Identifier: Apache-2.0
"""Who gets in."""

import os
import shutil
import stat
import subprocess

import pytest

import harness
from harness import (ALICE_GID, ALICE_UID, BOB_GID, BOB_UID, as_alice, as_bob, as_user, errno_of, mountinfo, open_errno, put, read,
                     run, wait_for, write)

pytestmark = pytest.mark.root

TWO_USERS = f'''
[user alice]
uid = {ALICE_UID}
[user bob]
uid = {BOB_UID}
gid = {BOB_GID}
'''


@pytest.fixture
def tenants(mount):
    return mount(allow_other=True, config=TWO_USERS)


# ── who may enter ───────────────────────────────────────────────────────────────────────────

def test_without_allow_other_only_the_mounting_user_gets_in(daemon, s):
    write(s / 'f', 'x')
    for path in [daemon.mnt, s.path, s / 'f', f'{daemon.mnt}/.wsm/status']:
        assert as_alice(lambda p=path: errno_of(os.stat, p)) == 'EACCES'
    assert as_alice(lambda: errno_of(os.listdir, daemon.mnt)) == 'EACCES'


def test_a_configured_user_owns_the_directory_of_that_name(tenants):
    for name, uid, gid in [('alice', ALICE_UID, ALICE_GID), ('bob', BOB_UID, BOB_GID)]:
        for path in [f'{tenants.mnt}/{name}', f'{tenants.mnt}/{name}/coder', f'{tenants.mnt}/{name}/coder/s1']:
            st = os.stat(path)
            assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (uid, gid, 0o700)


def test_each_user_works_in_their_own_directory_and_in_no_other(tenants):
    alice, bob = tenants.session('alice/coder/s1'), tenants.session('bob/coder/s1')
    as_alice(lambda: write(alice / 'f', 'x'))
    as_bob(lambda: write(bob / 'f', 'y'))
    assert as_alice(lambda: read(alice / 'f')) == 'x'
    for path in [f'{tenants.mnt}/alice/coder', alice.path, alice / 'f', f'{alice.path}/.wsm/id']:
        assert as_bob(lambda p=path: errno_of(os.stat, p)) == 'EACCES'
    assert as_bob(lambda: errno_of(os.listdir, f'{tenants.mnt}/alice')) == 'EACCES'
    assert as_bob(lambda: errno_of(write, alice / 'g', '')) == 'EACCES'
    assert as_bob(lambda: errno_of(os.mkdir, f'{tenants.mnt}/alice/x.y')) == 'EACCES'
    assert as_bob(lambda: errno_of(os.rename, alice / 'f', bob / 'g')) == 'EACCES'


def test_names_that_are_not_configured_belong_to_the_mounting_user(tenants):
    assert os.stat(f'{tenants.mnt}/carol').st_uid == os.geteuid()
    assert as_alice(lambda: errno_of(os.mkdir, f'{tenants.mnt}/x.y')) == 'EACCES'


def test_a_users_files_are_theirs_on_the_disk_and_in_the_mount(tenants):
    alice = tenants.session('alice/coder/s1')
    as_alice(lambda: (write(alice / 'f', 'x'), os.mkdir(alice / 'd'), os.symlink('f', alice / 'l')) and None)
    for name in ['f', 'd', 'l']:
        assert os.lstat(alice / name).st_uid == ALICE_UID
        assert os.lstat(f'{tenants.basedir}/alice/coder/{name}').st_uid == ALICE_UID


def test_the_mode_of_a_users_directory_can_be_configured(mount):
    daemon = mount(allow_other=True, config=f'[user alice]\nuid = {ALICE_UID}\ngid = {BOB_GID}\nmode = 0750\n')
    s = daemon.session()
    st = os.stat(f'{daemon.mnt}/alice')
    assert (st.st_gid, stat.S_IMODE(st.st_mode)) == (BOB_GID, 0o750)
    as_user(ALICE_UID, BOB_GID, lambda: write(s / 'f', 'x'))
    assert as_bob(lambda: errno_of(os.listdir, f'{daemon.mnt}/alice/coder')) is None
    assert as_bob(lambda: errno_of(write, s / 'g', 'x')) == 'EACCES'


def test_a_session_has_the_configured_mode_before_and_after_it_is_provisioned(mount):
    daemon = mount(allow_other=True, config=f'[user alice]\nuid = {ALICE_UID}\ngid = {BOB_GID}\nmode = 0750\n')
    s = daemon.session()
    before = stat.S_IMODE(os.stat(s.path).st_mode)
    s.use()
    assert (before, stat.S_IMODE(os.stat(s.path).st_mode)) == (0o750, 0o750)
    as_user(ALICE_UID, BOB_GID, lambda: write(s / 'f', 'x'))
    assert as_bob(lambda: read(s / 'f')) == 'x'


def test_with_users_listed_other_names_do_not_exist(mount):
    daemon = mount(allow_other=True, users='listed', config=TWO_USERS)
    assert errno_of(os.stat, f'{daemon.mnt}/carol') == 'ENOENT'
    as_alice(lambda: write(daemon.session('alice/coder/s1') / 'f', 'x'))


def test_a_user_added_by_a_reload_gets_in(mount):
    daemon = mount(allow_other=True, users='listed', config=f'[user alice]\nuid = {ALICE_UID}\n')
    bob = daemon.session('bob/coder/s1')
    assert as_bob(lambda: errno_of(write, bob / 'f', 'x')) == 'ENOENT'
    daemon.set_config(TWO_USERS)
    daemon.ctl('reload')
    wait_for(lambda: as_bob(lambda: errno_of(write, bob / 'f', 'x')) is None)


def test_a_reload_that_says_whose_a_user_is_gives_that_one_the_files_too(mount):
    """Of a workspace that is in use, with what the kernel has in its caches; and takes them from the other."""
    daemon = mount(allow_other=True, config='[user bob]\n')
    s = daemon.session('bob/coder/s1').use()
    os.mkdir(s / 'd')
    write(s / 'd/f', 'x')
    os.symlink('d/f', s / 'l')

    def work(text):
        with open(s / 'l', 'a', encoding='utf-8') as f:
            f.write(text)
        write(s / f'd/{text}', text)
        return {os.lstat(s / name).st_uid for name in ['', 'd', 'd/f', 'l', f'd/{text}']}
    assert os.stat(s / 'd/f').st_uid == 0
    daemon.set_config(TWO_USERS)
    daemon.ctl('reload')
    assert as_bob(lambda: work('b')) == {BOB_UID}
    s.ctl('close')
    assert as_bob(lambda: work('c')) == {BOB_UID}
    daemon.set_config(f'[user bob]\nuid = {ALICE_UID}\n')
    daemon.ctl('reload')
    assert as_alice(lambda: work('d')) == {ALICE_UID}
    assert as_bob(lambda: errno_of(read, s / 'd/f')) == 'EACCES'
    assert read(s / 'd/f') == 'xbcd'


# ── modes of files ──────────────────────────────────────────────────────────────────────────

class Common:
    """A directory in which everybody may write, with the owners that the disk has."""

    def __init__(self, session):
        self.session = session.use()
        os.chmod(session.path, 0o755)
        os.mkdir(session / 'pub')
        os.chmod(session / 'pub', 0o777)
        self.below = f'{session.daemon.basedir}/common/coder/pub'

    def __truediv__(self, name):
        return self.session / f'pub/{name}'


@pytest.fixture
def common(mount):
    return Common(mount(allow_other=True, config='[user common]\nmode = 0755\n').session('common/coder/s1'))


def test_files_are_made_as_the_caller(common):
    as_alice(lambda: write(common / 'f', 'x'))
    as_bob(lambda: os.mkdir(common / 'd'))
    assert (os.stat(common / 'f').st_uid, os.stat(common / 'f').st_gid) == (ALICE_UID, ALICE_GID)
    assert (os.stat(common / 'd').st_uid, os.stat(common / 'd').st_gid) == (BOB_UID, BOB_GID)
    assert os.stat(f'{common.below}/f').st_uid == ALICE_UID


def test_the_modes_of_files_are_enforced(common):
    as_alice(lambda: (write(common / 'f', 'x'), os.chmod(common / 'f', 0o600)) and None)
    assert as_bob(lambda: errno_of(read, common / 'f')) == 'EACCES'
    assert as_bob(lambda: errno_of(os.chmod, common / 'f', 0o666)) == 'EPERM'
    assert as_bob(lambda: errno_of(os.chown, common / 'f', BOB_UID, -1)) == 'EPERM'
    assert as_bob(lambda: errno_of(os.utime, common / 'f', (1, 1))) in ('EPERM', 'EACCES')
    as_alice(lambda: os.chmod(common / 'f', 0o644))
    assert as_bob(lambda: read(common / 'f')) == 'x'
    assert as_bob(lambda: errno_of(write, common / 'f', 'y')) == 'EACCES'


def test_a_sticky_directory_protects_the_files_of_others(common):
    os.mkdir(common / 'd')
    os.chmod(common / 'd', 0o1777)
    as_alice(lambda: write(common / 'd/f', 'x'))
    assert as_bob(lambda: errno_of(os.unlink, common / 'd/f')) == 'EPERM'
    assert as_bob(lambda: errno_of(os.rename, common / 'd/f', common / 'd/g')) == 'EPERM'
    as_alice(lambda: os.unlink(common / 'd/f'))


def test_a_setgid_directory_gives_its_group(common):
    os.mkdir(common / 'd')
    os.chown(common / 'd', -1, BOB_GID)
    os.chmod(common / 'd', 0o2777)
    as_alice(lambda: (write(common / 'd/f', 'x'), os.mkdir(common / 'd/e')) and None)
    assert os.stat(common / 'd/f').st_gid == BOB_GID
    assert os.stat(common / 'd/e').st_mode & stat.S_ISGID


def test_a_write_by_another_user_clears_setuid(common):
    as_alice(lambda: (write(common / 'f', 'x'), os.chmod(common / 'f', 0o6777)) and None)
    as_bob(lambda: harness.append(common / 'f', 'y'))
    assert stat.S_IMODE(os.stat(common / 'f').st_mode) == 0o777
    as_alice(lambda: os.chmod(common / 'f', 0o6777))
    as_bob(lambda: os.truncate(common / 'f', 0))
    assert stat.S_IMODE(os.stat(common / 'f').st_mode) == 0o777


def test_a_setuid_program_gains_nothing(common):
    shutil.copy('/usr/bin/id', common / 'id')
    os.chmod(common / 'id', 0o4755)
    out = as_alice(lambda: subprocess.run([common / 'id', '-u'], capture_output=True, text=True, check=True).stdout)
    assert out.strip() == str(ALICE_UID)


def test_a_device_node_gives_no_access(common):
    code = errno_of(os.mknod, common / 'null', stat.S_IFCHR | 0o666, os.makedev(1, 3))
    if code is None:
        assert errno_of(read, common / 'null') == 'EACCES'
    else:
        assert code == 'EPERM'


# ── the manager's files ─────────────────────────────────────────────────────────────────────

def test_status_and_metrics_are_for_everybody_who_may_enter(tenants):
    for name in ['status', 'metrics']:
        assert as_bob(lambda n=name: read(f'{tenants.mnt}/.wsm/{n}')) != ''


def test_the_other_files_of_the_manager_belong_to_root_and_the_mounts_owner(tenants):
    for name in ['workspaces', 'config', 'events']:
        assert as_bob(lambda n=name: open_errno(f'{tenants.mnt}/.wsm/{n}', os.O_RDONLY)) == 'EACCES'
    assert as_bob(lambda: errno_of(tenants.ctl, 'close-all')) == 'EACCES'


def test_the_side_path_of_a_users_sessions_is_for_that_user(tenants):
    alice = tenants.session('alice/coder/s1')
    as_alice(lambda: (alice.use(), alice.ctl('pin')) and None)
    assert as_alice(alice.state) == 'ready'
    for name in ['state', 'id', 'status', 'ctl']:
        assert as_bob(lambda n=name: open_errno(f'{alice.control}/{n}', os.O_RDONLY)) == 'EACCES'
    assert as_bob(lambda: errno_of(alice.ctl, 'close')) == 'EACCES'
    assert as_bob(lambda: errno_of(os.listdir, f'{tenants.mnt}/.wsm/sessions/alice')) == 'EACCES'
    assert as_alice(alice.state) == 'ready'


def test_root_may_use_every_sessions_control_files(tenants):
    alice = tenants.session('alice/coder/s1')
    as_alice(lambda: write(alice / 'f', 'x'))
    alice.ctl('close')
    assert alice.state() == 'absent'


def test_a_tenant_who_has_only_the_base_directory_gets_nothing(tenants):
    alice = tenants.session('alice/coder/s1')
    as_alice(lambda: write(alice / 'f', 'x'))
    for path in [tenants.basedir, f'{tenants.basedir}/alice', f'{tenants.basedir}/alice/coder/f']:
        assert as_bob(lambda p=path: errno_of(os.stat if p != tenants.basedir else os.listdir, p)) == 'EACCES'


# ── an ordinary user's mount ────────────────────────────────────────────────────────────────

@pytest.fixture
def ordinary(mount):
    """A mount made by an ordinary user through fusermount3."""
    if not shutil.which('fusermount3'):
        pytest.skip('no fusermount3 here')
    mode = stat.S_IMODE(os.stat('/dev/fuse').st_mode)
    d = mount.prepare()
    d.uid, d.gid = BOB_UID, BOB_GID
    # The build may lie where that user cannot pass.
    program = f'{d.top}/bin'
    os.mkdir(program)
    shutil.copy(harness.WSMFS, f'{program}/wsmfs')
    d.program = f'{program}/wsmfs'
    os.chown(d.mnt, BOB_UID, BOB_GID)
    os.mkdir(d.basedir, 0o700)
    os.chown(d.basedir, BOB_UID, BOB_GID)
    os.mkdir(f'{d.top}/home', 0o700)
    os.chown(f'{d.top}/home', BOB_UID, BOB_GID)
    d.opts['state_dir'] = f'{d.top}/home/state'
    os.chmod('/dev/fuse', 0o666)
    try:
        d.start()
        yield d
        d.stop()
    finally:
        os.chmod('/dev/fuse', mode)


def test_an_ordinary_user_can_mount_and_work(ordinary):
    s = ordinary.session()

    def work():
        write(s / 'f', 'x')
        os.mkdir(s / 'd')
        os.rename(s / 'f', s / 'd/g')
        s.ctl('close')
        return read(s / 'd/g'), s.state(), os.stat(s / 'd/g').st_uid
    assert as_bob(work) == ('x', 'ready', BOB_UID)


def test_nobody_else_gets_into_an_ordinary_users_mount_not_even_root(ordinary):
    assert errno_of(os.stat, ordinary.mnt) == 'EACCES'
    assert as_alice(lambda: errno_of(os.stat, ordinary.mnt)) == 'EACCES'


def test_an_ordinary_users_mount_says_what_is_left_out(ordinary):
    assert as_bob(ordinary.status)['passthrough'] not in ('on', True)


def test_passthrough_that_was_asked_for_and_cannot_be_had_refuses_the_mount(ordinary):
    ordinary.stop()
    ordinary.opts['passthrough'] = 'on'
    code, text = harness.mount_fails(ordinary)
    assert code == 1 and 'passthrough=on cannot be had here' in text, text
    del ordinary.opts['passthrough']
    ordinary.start()


def test_an_ordinary_user_can_unmount(ordinary):
    as_bob(lambda: run('fusermount3', '-u', ordinary.mnt) and None)
    ordinary.proc.wait(60)
    assert ordinary.proc.returncode == 0
    assert not mountinfo(ordinary.mnt)


def test_an_ordinary_user_who_was_killed_can_mount_again(ordinary):
    s = ordinary.session()
    as_bob(lambda: write(s / 'f', 'x'))
    ordinary.kill()
    ordinary.start()
    assert as_bob(lambda: read(s / 'f')) == 'x'


def test_an_ordinary_users_state_is_below_xdg_state_home(ordinary):
    ordinary.stop()
    del ordinary.opts['state_dir']
    ordinary.extra_env = {'XDG_STATE_HOME': f'{ordinary.top}/home/xdg', 'HOME': f'{ordinary.top}/home'}
    ordinary.start()
    assert os.listdir(f'{ordinary.top}/home/xdg') == ['wsmfs']
    as_bob(lambda: put(f'{ordinary.session().control}/ctl', 'pin\n') and None)
