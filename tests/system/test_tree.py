# SPDX-License-Identifier: Apache-2.0
"""Which names there are, what making and removing them does, and what provisions."""

import os
import re
import stat
import time

import pytest

from harness import WSMFS, errno_of, open_errno, read, run, sh, tree, write

SEARCHED = ['node_modules', 'HEAD', 'objects', 'refs', 'config', 'Makefile', 'makefile',
            'GNUmakefile', 'Dockerfile', 'Gemfile', 'Rakefile', 'Procfile', 'Justfile', 'justfile',
            'WORKSPACE', 'BUILD', 'rust-toolchain', 'build', 'lib', 'lib64', 'vendor', 'target',
            'tags']
DOTTED = ['package.json', 'Cargo.toml', 'tsconfig.json', 'a.b', 'setup.py', 'trailing.']
PLAIN = ['alice', 'Alice-2', 'x', '0', 'täst', '日本', '🦀', 'a b', '-rf', '~', '$HOME', 'a%2fb', 'con',
         'alice@example.com', '@', 'n' * 255, 'ü' * 127]
LEVELS = ['', 'alice', 'alice/coder']


def base(shared_daemon, level):
    return os.path.join(shared_daemon.mnt, level)


# ── names that exist by themselves ──────────────────────────────────────────────────────────

@pytest.mark.parametrize('level', LEVELS)
@pytest.mark.parametrize('name', PLAIN, ids=ascii)
def test_a_plain_name_exists_by_itself_on_each_level(shared_daemon, fresh, level, name):
    st = os.stat(f'{base(shared_daemon, level)}/{name}')
    assert stat.S_ISDIR(st.st_mode)


@pytest.mark.parametrize('level', LEVELS)
@pytest.mark.parametrize('name', SEARCHED + DOTTED)
def test_a_name_that_tools_search_for_does_not_exist_by_itself(shared_daemon, fresh, level, name):
    assert errno_of(os.stat, f'{base(shared_daemon, level)}/{name}') == 'ENOENT'


@pytest.mark.parametrize('level', LEVELS)
@pytest.mark.parametrize('name', SEARCHED + DOTTED)
def test_mkdir_makes_a_name_that_does_not_exist_by_itself(shared_daemon, fresh, level, name):
    path = f'{base(shared_daemon, level)}/{name}'
    os.mkdir(path)
    assert stat.S_ISDIR(os.stat(path).st_mode)
    assert name in os.listdir(base(shared_daemon, level))
    os.rmdir(path)
    assert errno_of(os.stat, path) == 'ENOENT'


def test_a_made_session_is_not_provisioned(daemon):
    s = daemon.session('alice/coder/my.project')
    os.mkdir(s.path)
    assert s.state() == 'absent'
    assert not os.path.exists(f'{daemon.basedir}/alice')


def test_a_made_name_is_still_there_after_a_restart(daemon):
    os.mkdir(f'{daemon.mnt}/al.ice')
    os.mkdir(f'{daemon.mnt}/al.ice/co.der')
    os.mkdir(f'{daemon.mnt}/al.ice/co.der/s.1')
    daemon.restart()
    assert os.listdir(daemon.mnt) == ['al.ice']
    assert os.listdir(f'{daemon.mnt}/al.ice') == ['co.der']
    assert os.listdir(f'{daemon.mnt}/al.ice/co.der') == ['s.1']


@pytest.mark.parametrize('name', ['.hidden', '.git', '..x', '.wsmfs'])
@pytest.mark.parametrize('level', LEVELS)
def test_a_name_with_a_leading_dot_is_no_name(shared_daemon, fresh, level, name):
    path = f'{base(shared_daemon, level)}/{name}'
    assert errno_of(os.stat, path) == 'ENOENT'
    assert errno_of(os.mkdir, path) == 'EINVAL'


def test_mkdir_of_a_plain_name_is_eexist_and_mkdir_p_succeeds(daemon):
    assert errno_of(os.mkdir, f'{daemon.mnt}/alice') == 'EEXIST'
    assert errno_of(os.mkdir, f'{daemon.mnt}/alice/coder/s1') == 'EEXIST'
    run('mkdir', '-p', f'{daemon.mnt}/alice/coder/s1')
    assert daemon.session().state() == 'absent'


def test_mkdir_of_a_made_name_again_is_eexist(daemon):
    os.mkdir(f'{daemon.mnt}/a.b')
    assert errno_of(os.mkdir, f'{daemon.mnt}/a.b') == 'EEXIST'


def test_mkdir_p_makes_dotted_names_on_all_levels(daemon):
    run('mkdir', '-p', f'{daemon.mnt}/a.b/c.d/e.f/inside')
    assert os.listdir(f'{daemon.mnt}/a.b/c.d/e.f') == ['inside']


def test_with_names_any_every_valid_name_exists(mount):
    daemon = mount(names='any')
    for name in ['package.json', 'node_modules', 'HEAD', 'alice']:
        assert stat.S_ISDIR(os.stat(f'{daemon.mnt}/{name}/x.y/{name}').st_mode)
    assert errno_of(os.stat, f'{daemon.mnt}/.git') == 'ENOENT'


def test_with_names_made_only_mkdir_makes_names(mount):
    daemon = mount(names='made')
    assert errno_of(os.stat, f'{daemon.mnt}/alice') == 'ENOENT'
    os.mkdir(f'{daemon.mnt}/alice')
    assert errno_of(os.stat, f'{daemon.mnt}/alice/coder') == 'ENOENT'
    run('mkdir', '-p', f'{daemon.mnt}/alice/coder/s1')
    write(f'{daemon.mnt}/alice/coder/s1/f', 'x')
    assert errno_of(os.stat, f'{daemon.mnt}/alice/coder/s2') == 'ENOENT'


def test_with_users_listed_only_configured_users_exist(mount):
    daemon = mount(users='listed', config='[user alice]\nmode = 0700\n[user bob]\nmode = 0700\n')
    assert sorted(os.listdir(daemon.mnt)) == ['alice', 'bob']
    write(f'{daemon.mnt}/alice/coder/s1/f', 'x')
    assert errno_of(os.stat, f'{daemon.mnt}/carol') == 'ENOENT'
    assert errno_of(os.mkdir, f'{daemon.mnt}/carol') == 'EPERM'
    assert errno_of(os.mkdir, f'{daemon.mnt}/ca.rol') == 'EPERM'
    assert errno_of(os.stat, f'{daemon.mnt}/.wsm/sessions/carol') == 'ENOENT'


# ── listing ─────────────────────────────────────────────────────────────────────────────────

def test_names_that_were_only_looked_at_are_not_listed(daemon):
    os.stat(f'{daemon.mnt}/alice/coder/s1')
    os.stat(f'{daemon.mnt}/bob')
    assert os.listdir(daemon.mnt) == []
    assert os.listdir(f'{daemon.mnt}/alice') == []
    assert os.listdir(f'{daemon.mnt}/alice/coder') == []


def test_a_provisioned_session_is_listed_on_all_levels(daemon, s):
    s.use()
    assert os.listdir(daemon.mnt) == ['alice']
    assert os.listdir(f'{daemon.mnt}/alice') == ['coder']
    assert os.listdir(f'{daemon.mnt}/alice/coder') == ['s1']


@pytest.mark.parametrize('how', ['a file', 'mkdir', 'a verb', 'a verb on the other side', 'an id'])
def test_a_name_that_appears_shows_at_once_in_the_mtimes_above_it(daemon, how):
    s = daemon.session('alice/coder/s.1' if how == 'mkdir' else 'alice/coder/s1')
    other = f'{daemon.mnt}/.wsm/sessions'
    above = [base(daemon, level) for level in LEVELS] + [f'{other}/{level}' for level in LEVELS[1:]]

    def times():
        return [(os.stat(path).st_mtime_ns, os.stat(path).st_ctime_ns) for path in above]
    before = times()
    assert before == times()
    time.sleep(0.002)  # a mtime has milliseconds
    {'a file': lambda: write(s / 'f', ''), 'mkdir': lambda: os.mkdir(s.path), 'a verb': lambda: s.ctl('touch'),
     'a verb on the other side': lambda: write(f'{other}/alice/coder/s1/ctl', 'touch\n'), 'an id': lambda: s.bind('own'),
     }[how]()
    after = times()
    assert not set(before) & set(after)
    assert s.path.split('/')[-1] in os.listdir(base(daemon, 'alice/coder'))
    assert after == times()


def test_tar_of_sessions_that_are_closed_sees_no_directory_change(daemon):
    names = 'alice/coder/s1', 'alice/coder/s2', 'alice/other/s1', 'bob/x/y'
    for name in names:
        daemon.session(name).bind(name.replace('/', '-'))
        write(daemon.session(name) / 'f', name)
    for _ in range(2):
        for name in names:
            daemon.session(name).ctl('close')
        assert run('tar', 'cf', '/dev/null', '-C', daemon.mnt, '.') == ''
        daemon.restart()


def test_workspaces_on_disk_are_found_at_the_start(mount):
    daemon = mount.prepare(isolation='per_session')
    os.makedirs(f'{daemon.basedir}/alice/coder/s1', 0o700)
    os.mkdir(f'{daemon.basedir}/lost+found', 0o700)  # the base directory may be the root of a file system
    for path in [daemon.basedir, f'{daemon.basedir}/alice', f'{daemon.basedir}/alice/coder']:
        os.chmod(path, 0o700)
    write(f'{daemon.basedir}/alice/coder/s1/old', 'x')
    daemon.start()
    assert os.listdir(daemon.mnt) == ['alice']
    assert os.listdir(f'{daemon.mnt}/alice') == ['coder']
    assert os.listdir(f'{daemon.mnt}/alice/coder') == ['s1']
    assert daemon.session().state() == 'absent'
    assert read(f'{daemon.mnt}/alice/coder/s1/old') == 'x'


def test_the_control_directory_is_there_by_name_and_not_listed(daemon, s):
    s.use()
    assert '.wsm' not in os.listdir(daemon.mnt)
    assert '.wsm' not in os.listdir(s.path)
    assert stat.S_ISDIR(os.stat(f'{daemon.mnt}/.wsm').st_mode)
    assert stat.S_ISDIR(os.stat(f'{s.path}/.wsm').st_mode)


def test_show_control_lists_the_control_directory_of_a_session(mount):
    daemon = mount(show_control=True)
    s = daemon.session().use()
    assert '.wsm' in os.listdir(s.path)


def test_a_file_of_the_workspace_named_like_the_control_directory_is_hidden(daemon, s):
    s.use()
    write(f'{daemon.basedir}/alice/coder/.wsm', 'mine')
    assert '.wsm' not in os.listdir(s.path)
    assert s.state() == 'ready'
    assert read(f'{s.path}/.wsm/state') == 'ready\n'


def test_there_is_no_control_directory_below_the_root_of_a_session(s):
    s.use()
    os.mkdir(s / 'd')
    assert errno_of(os.stat, s / 'd/.wsm') == 'ENOENT'
    os.mkdir(s / 'd/.wsm')
    assert os.listdir(s / 'd') == ['.wsm']


def test_listed_inode_numbers_are_those_of_stat(daemon, s):
    s.use()
    os.mkdir(s / 'd')
    write(s / 'f', 'x')
    for where in [daemon.mnt, f'{daemon.mnt}/alice', f'{daemon.mnt}/alice/coder', s.path]:
        with os.scandir(where) as entries:
            for entry in entries:
                assert entry.inode() == os.stat(entry.path, follow_symlinks=False).st_ino


def test_a_session_keeps_its_inode_number_when_it_is_provisioned_and_closed(s):
    before = os.stat(s.path).st_ino
    s.use()
    assert os.stat(s.path).st_ino == before
    s.ctl('close')
    assert os.stat(s.path).st_ino == before


def test_all_directories_have_inode_numbers_of_their_own(daemon, s):
    s.use()
    os.mkdir(s / 'd')
    paths = [daemon.mnt, f'{daemon.mnt}/alice', f'{daemon.mnt}/alice/coder', s.path, s / 'd',
             f'{daemon.mnt}/.wsm', f'{s.path}/.wsm', f'{daemon.mnt}/.wsm/sessions']
    numbers = [os.stat(p).st_ino for p in paths]
    assert len(set(numbers)) == len(numbers)


# ── what can not be made outside sessions ───────────────────────────────────────────────────

@pytest.mark.parametrize('level', LEVELS)
def test_only_directories_can_be_made_on_the_upper_levels(shared_daemon, fresh, level):
    where = base(shared_daemon, level)
    before = sorted(os.listdir(where))
    assert open_errno(f'{where}/file.txt', os.O_CREAT | os.O_WRONLY, 0o600) in ('EPERM', 'EACCES')
    assert errno_of(os.symlink, '/etc', f'{where}/link.x') in ('EPERM', 'EACCES')
    assert errno_of(os.mkfifo, f'{where}/fifo.x') in ('EPERM', 'EACCES')
    assert sorted(os.listdir(where)) == before


# ── rmdir ───────────────────────────────────────────────────────────────────────────────────

def test_rmdir_forgets_a_session_and_keeps_its_files(daemon, s):
    write(s / 'kept', 'x')
    other = daemon.session('alice/coder/s2').use()
    os.rmdir(s.path)
    assert os.listdir(f'{daemon.mnt}/alice/coder') == ['s2']
    assert read(other / 'kept') == 'x'
    assert read(s / 'kept') == 'x'


def test_rmdir_of_the_only_session_keeps_its_files(s, daemon):
    write(s / 'kept', 'x')
    os.rmdir(s.path)
    assert os.listdir(f'{daemon.mnt}/alice/coder') == []
    assert read(s / 'kept') == 'x'


def test_rmdir_of_a_user_or_agent_with_known_names_is_enotempty(daemon, s):
    s.use()
    assert errno_of(os.rmdir, f'{daemon.mnt}/alice/coder') == 'ENOTEMPTY'
    assert errno_of(os.rmdir, f'{daemon.mnt}/alice') == 'ENOTEMPTY'
    assert os.listdir(f'{daemon.mnt}/alice/coder') == ['s1']


def test_rmdir_of_made_names_upwards_forgets_them(daemon):
    run('mkdir', '-p', f'{daemon.mnt}/a.b/c.d/e.f')
    for name in ['a.b/c.d/e.f', 'a.b/c.d', 'a.b']:
        os.rmdir(f'{daemon.mnt}/{name}')
        assert errno_of(os.stat, f'{daemon.mnt}/{name}') == 'ENOENT'
    daemon.restart()
    assert os.listdir(daemon.mnt) == []


def test_a_name_can_be_made_removed_and_made_again(daemon):
    path = f'{daemon.mnt}/a.b'
    for _ in range(20):
        os.mkdir(path)
        os.stat(path)
        assert os.listdir(path) == []
        os.rmdir(path)
        assert errno_of(os.stat, path) == 'ENOENT'


def test_a_forgotten_session_can_be_used_again(s):
    for i in range(20):
        write(s / f'f{i}', 'x')
        os.rmdir(s.path)
    assert sorted(os.listdir(s.path)) == sorted(f'f{i}' for i in range(20))


def test_the_control_directory_cannot_be_removed_or_changed(daemon, s):
    s.use()
    for path in [f'{daemon.mnt}/.wsm', s.inner, f'{daemon.mnt}/.wsm/sessions']:
        assert errno_of(os.rmdir, path) in ('EPERM', 'EACCES', 'EBUSY')
        assert errno_of(os.mkdir, f'{path}/x.y') in ('EPERM', 'EACCES', 'EINVAL')
    assert errno_of(os.unlink, f'{s.inner}/state') in ('EPERM', 'EACCES')
    assert errno_of(os.rename, f'{s.inner}/state', s / 'state') in ('EPERM', 'EACCES', 'EXDEV')
    assert errno_of(os.rename, s.inner, s / 'wsm') in ('EPERM', 'EACCES', 'EBUSY')
    assert errno_of(os.link, f'{s.inner}/state', s / 'state') in ('EPERM', 'EACCES', 'EXDEV')
    assert s.state() == 'ready'
    assert os.listdir(s.path) == []


# ── what provisions ─────────────────────────────────────────────────────────────────────────

def provisioned(daemon):
    try:
        return read(f'{daemon.top}/control/log').splitlines()
    except FileNotFoundError:
        return []


LOOKING = {
    'ls -l of the agent': 'ls -la {mnt}/alice/coder {mnt}/alice {mnt}',
    'find -maxdepth 3': 'find {mnt} -maxdepth 3 -printf "%p %s %t %u\\n"',
    'find of the agent': 'find {mnt}/alice/coder -maxdepth 1',
    'stat': 'stat {mnt}/alice/coder/s1 {mnt}/alice/coder {mnt}/alice',
    'test -d': 'test -d {mnt}/alice/coder/s1 && test -d {mnt}/alice/coder/s2 && test -w {mnt}/alice/coder/s1',
    'ls -d': 'ls -ld {mnt}/alice/coder/*',
    'shell completion': 'compgen -f {mnt}/alice/coder/s; compgen -d {mnt}/alice/; compgen -f {mnt}/',
    'every control file': 'for f in id state status progress error; do cat {mnt}/alice/coder/s1/.wsm/$f; done',
    'every control file by the manager': 'cd {mnt}/.wsm/sessions/alice/coder/s1 && cat id state status progress error',
    'listing the control directories': 'ls -la {mnt}/alice/coder/s1/.wsm {mnt}/.wsm/sessions/alice/coder/s1',
    "the manager's files": 'cd {mnt}/.wsm && cat status workspaces metrics config',
    'the manager listed': 'ls -la {mnt}/.wsm {mnt}/.wsm/sessions {mnt}/.wsm/sessions/alice/coder',
    'cd': 'cd {mnt}/alice/coder/s1 && pwd',
    'df': 'df {mnt} && df -t fuse.wsmfs >/dev/null; true',
}


@pytest.mark.parametrize('what', LOOKING)
def test_nothing_is_provisioned_by_looking(mount, what):
    daemon = mount.test_backend()
    os.mkdir(f'{daemon.mnt}/alice/coder/s.2')  # known, so that there is something to list
    sh(LOOKING[what].format(mnt=daemon.mnt))
    assert daemon.session().state() == 'absent'
    assert daemon.session('alice/coder/s.2').state() == 'absent'
    assert provisioned(daemon) == []


@pytest.mark.parametrize('what', ['access', 'getxattr', 'statvfs'])
def test_other_looks_at_a_session_provision_nothing(mount, what):
    daemon = mount.test_backend()
    s = daemon.session()
    if what == 'access':
        os.access(s.path, os.W_OK)
    elif what == 'getxattr':
        errno_of(os.getxattr, s.path, 'user.x')
        errno_of(os.listxattr, s.path)
    else:
        os.statvfs(s.path)
    assert s.state() == 'absent'
    assert provisioned(daemon) == []


ACCESSES = {
    'opendir': lambda s: os.close(os.open(s.path, os.O_RDONLY | os.O_DIRECTORY)),
    'a lookup': lambda s: errno_of(os.stat, s / 'nothing'),
    'a create': lambda s: write(s / 'new', 'x'),
    'mkdir': lambda s: os.mkdir(s / 'dir'),
    'a symlink': lambda s: os.symlink('x', s / 'link'),
    'ctl provision': lambda s: s.ctl('provision'),
}


@pytest.mark.parametrize('what', ACCESSES)
def test_an_access_to_a_sessions_files_provisions_it(mount, what):
    daemon = mount.test_backend()
    s = daemon.session()
    ACCESSES[what](s)
    assert s.state() == 'ready'
    assert [line for line in provisioned(daemon) if line.startswith('provision ')] == [f'provision {s.id()}']


def test_provision_nowait_returns_at_once(mount):
    daemon = mount.test_backend()
    s = daemon.session()
    write(f'{daemon.top}/control/default', 'delay_ms 2000\n')
    s.ctl('provision nowait')
    assert s.state() == 'provisioning'
    s.wait_state('ready')


def test_with_provision_jobs_an_access_starts_no_sandbox(mount):
    daemon = mount(provision='jobs')
    s = daemon.session()
    write(s / 'f', 'x')
    assert read(s / 'f') == 'x'


@pytest.mark.parametrize('verb', ['touch', 'pin', 'ttl 600'])
def test_some_verbs_make_a_plain_name_known(daemon, s, verb):
    s.ctl(verb)
    assert os.listdir(f'{daemon.mnt}/alice/coder') == ['s1']
    assert s.state() == 'absent'


def test_the_mount_says_what_it_is(daemon):
    line = next(line for line in read('/proc/self/mounts').splitlines() if f' {daemon.mnt} ' in line)
    words = line.split()
    assert words[2] == 'fuse.wsmfs'
    options = words[3].split(',')
    assert {'nosuid', 'nodev', 'default_permissions'} <= set(options)
    assert words[0] == daemon.source


def test_statfs_tells_of_the_disk_below(daemon, s):
    s.use()
    here, there = os.statvfs(s.path), os.statvfs(daemon.basedir)
    assert here.f_blocks * here.f_frsize == there.f_blocks * there.f_frsize
    assert here.f_namemax >= 255


def test_a_new_session_is_empty(s):
    assert os.listdir(s.path) == []
    assert tree(s.path) == {}


def test_files_lie_where_the_documentation_says(mount):
    for policy, place in {'per_agent': 'alice/coder', 'per_session': 'alice/coder/s1',
                          'per_user': 'alice'}.items():
        daemon = mount(isolation=policy)
        write(daemon.session() / 'f', policy)
        assert read(f'{daemon.basedir}/{place}/f') == policy


def test_the_version_in_status_is_that_of_the_program(daemon):
    version = run(WSMFS, '--version')
    assert re.search(r'\d+\.\d+', version)
    assert daemon.status()['version'] in version
